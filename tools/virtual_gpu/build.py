"""What the virtual GPU is built of: an environment with torch's CUDA build, and three libraries.

The environment is a folder beside .venv with the packages of requirements.txt and
requirements-test.txt. Two libraries are compiled from driver/, and take the places of libcuda.so.1
and libnvidia-ml.so.1; the third is the emulation, which not all processes load.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Not for running scripts, or named anew for the torch that is asked for.
LEFT_OUT = ("torch", "triton", "torchao", "ruff", "playwright")
# Whose functions the driver is asked for; those that driver/ does not define have no effect.
VENDORS = ["cu13/lib/libcudart.so", "cu13/lib/libcublas.so", "cu13/lib/libcublasLt.so"]
VENDORS += ["cu13/lib/libcusparse.so", "cu13/lib/libcufft.so", "cu13/lib/libcusolver.so"]
VENDORS += ["cu13/lib/libcupti.so", "cu13/lib/libcufile.so", "cudnn/lib/libcudnn.so"]
VENDORS += ["nccl/lib/libnccl.so", "cusparselt/lib/libcusparseLt.so"]
USERS = ["torch/lib/*.so", "bitsandbytes/libbitsandbytes_cuda13*.so", "torchao/*.so"]
# Functions of the driver are looked up by name as a program runs: these by torch, and those that
# Triton's driver.c names.
DRIVER = {"cuCtxSetCurrent", "cuLinkAddData", "cuLinkComplete", "cuLinkCreate", "cuModuleUnload"}
DRIVER_USER = "triton/backends/nvidia/driver.c"
# cuDNN's own functions that say which cuDNN this is need no GPU.
REAL = {"cudnnGetVersion", "cudnnGetCudartVersion", "cudnnGetErrorString"}
REAL |= {"cudnnGetLastErrorString", "cudnnGetProperty"}


class BuildFailed(Exception):
    """The environment or a library could not be made."""


def environment(torch):
    """Return the Python of the environment for one torch, and create it if it is missing.

    torch: "" for that of requirements.txt, a version such as "2.11", or "newest".
    """
    folder = ROOT / (".venv-virtual-gpu" + (f"-{torch}" if torch else ""))
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = _requirements(torch)
    if not done.exists() or done.read_text() != wanted:
        installing = f"installing torch's CUDA build into {folder.name}, 6 GB"
        print(f"virtual-gpu: {installing}", file=sys.stderr)
        _call([sys.executable, "-m", "venv", str(folder)])
        packages = folder / "requirements.txt"
        packages.write_text(wanted)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _call([*pip, "-r", str(packages)])
        cuda = _call([str(python), "-c", "import torch; print(torch.version.cuda or '')"]).strip()
        if not cuda:
            raise BuildFailed(f"{folder.name} has a torch without CUDA; remove it, name another")
        done.write_text(wanted)
    return python


def _requirements(torch):
    """Return the project's requirements, with a torch for CUDA.

    === excludes 2.13.0+cpu, which == would accept if an index offers it.
    """
    files = [ROOT / "requirements.txt", ROOT / "requirements-test.txt"]
    lines = [line.split("#")[0].strip() for file in files for line in file.read_text().splitlines()]
    named = {re.match(r"[\w.-]+", line)[0]: line for line in lines if line}
    pins = [line for name, line in named.items() if name not in LEFT_OUT]
    if not torch:
        pins += [named["torch"].replace("==", "==="), named["torchao"], named["triton"]]
    elif torch == "newest":
        pins += ["torch", "torchao"]
    else:
        pins += [f"torch==={torch}" + ".0" * (torch.count(".") == 1), "torchao"]
    return "\n".join(pins) + "\n"


def libraries(python):
    """The folder with the libraries for the packages of an environment, made if need be."""
    folder = python.parents[1] / "virtual_gpu"
    torch = Path(_call([str(python), "-c", "import torch; print(torch.__path__[0])"]).strip())
    packages = torch.parent
    sources = sorted((HERE / "driver").iterdir())
    made_of = [*sources, *(HERE / "emulation").iterdir(), Path(__file__)]
    newest = max(file.stat().st_mtime for file in made_of)
    done = folder / "libnvidia-ml.so.1"
    if done.exists() and done.stat().st_mtime > newest:
        return folder
    folder.mkdir(exist_ok=True)
    nvidia = packages / "nvidia"
    headers = [nvidia / part / "include" for part in ("cu13", "cudnn", "nccl")]
    headers.append(packages / "triton" / "backends" / "nvidia" / "include")
    compiler = ["g++", "-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-w"]
    compiler += [f"-I{header}" for header in headers]
    objects = {}
    for source in sources:
        if source.suffix == ".cpp":
            objects[source.stem] = str(folder / f"{source.stem}.o")
            _call([*compiler, "-c", str(source), "-o", objects[source.stem]])
    nvml = objects.pop("nvml")
    stubs = folder / "stubs.c"
    stubs.write_text(_stubs(packages, objects.values()))
    shared = ["g++", "-shared", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-fPIC", str(stubs)]
    library = folder / "libcuda.so.1"
    linked = [*objects.values(), "-o", str(library), "-ldl", "-lpthread", "-lrt"]
    _call([*shared, "-x", "none", *linked])
    (folder / "libcuda.so").unlink(missing_ok=True)
    (folder / "libcuda.so").symlink_to(library.name)  # by which Triton links
    operators = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
    operators += [f"-I{torch / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    operators += [str(HERE / "emulation" / "operators.cpp"), "-o", str(folder / "libemulation.so")]
    _call([*operators, f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"])
    _call(["g++", "-shared", "-Wl,-soname,libnvidia-ml.so.1", nvml, "-o", str(done)])
    return folder


def _stubs(packages, objects):
    """Return C with a function without effect for each missing function of a vendor's library.

    Missing are those that torch refers to and the objects do not define.
    """
    users = [file for pattern in USERS for file in packages.glob(pattern)]
    asked = _symbols("--undefined-only", users)
    vendors = [file for name in VENDORS for file in (packages / "nvidia").glob(f"{name}.*")]
    there = _symbols("--defined-only", vendors)
    named = re.findall(r"\bcu[A-Z]\w+(?=[,()\s])", (packages / DRIVER_USER).read_text())
    looked_up = {name + suffix for name in DRIVER.union(named) for suffix in ("", "_v2")}
    ours = _symbols("--defined-only", objects, "")
    names = ((asked & there) | looked_up) - ours - REAL
    names = sorted(name for name in names if name.startswith(("cu", "nccl", "__cuda")))
    return "".join(f"long {name}() {{ return 0; }}\n" for name in names)


def _symbols(which, files, dynamic="-D"):
    command = ["nm", which, *filter(None, [dynamic]), *map(str, files)]
    lines = _call(command).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line and not line.endswith(":")}


def _call(command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise BuildFailed(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["no message"]
        raise BuildFailed(f"{' '.join(command[:6])} ...: {said[-1]}") from None
