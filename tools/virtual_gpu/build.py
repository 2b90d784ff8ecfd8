"""Build of the virtual GPU: an environment with torch's CUDA build, and three libraries.

The environment is a folder beside .venv with the packages of requirements.txt and
requirements-test.txt. Two libraries are compiled from driver/ and replace libcuda.so.1 and
libnvidia-ml.so.1. The third is the emulation, which not all processes load.
"""

import re
from pathlib import Path

from packaging.requirements import Requirement

from tools.pair import environments
from Utils.base.child import output_of
from Utils.base.errors import UserError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = ("requirements.txt", "requirements-test.txt")
# Libraries with functions that programs request; those that driver/ does not define do nothing.
VENDORS = [
    "cu13/lib/libcudart.so",
    "cu13/lib/libcublas.so",
    "cu13/lib/libcublasLt.so",
    "cu13/lib/libcusparse.so",
    "cu13/lib/libcufft.so",
    "cu13/lib/libcusolver.so",
    "cu13/lib/libcupti.so",
    "cu13/lib/libcufile.so",
    "cudnn/lib/libcudnn.so",
    "nccl/lib/libnccl.so",
    "cusparselt/lib/libcusparseLt.so",
]
USERS = ["torch/lib/*.so", "bitsandbytes/libbitsandbytes_cuda13*.so", "torchao/*.so"]
# Functions of the driver that torch looks up by name at run time; Triton's are in its driver.c.
DRIVER = {"cuCtxSetCurrent", "cuLinkAddData", "cuLinkComplete", "cuLinkCreate", "cuModuleUnload"}
DRIVER_USER = "triton/backends/nvidia/driver.c"
# Functions of cuDNN that need no GPU and are not replaced, such as its version.
REAL = {
    "cudnnGetVersion",
    "cudnnGetCudartVersion",
    "cudnnGetErrorString",
    "cudnnGetLastErrorString",
    "cudnnGetProperty",
}


def environment(torch):
    """Return the Python of the environment for one torch, and create it if it is missing.

    === excludes 2.13.0+cpu, which == would accept if an index offers it.

    torch: "" for that of requirements.txt, a version such as "2.11", or "newest". Raises UserError.
    """
    folder = ROOT / (".venv-virtual-gpu" + (f"-{torch}" if torch else ""))
    version = torch or environments.version(environments.pinned(REQUIREMENTS)["torch"])
    version += ".0" * (version.count(".") == 1)
    changed = Requirement("torch" if torch == "newest" else f"torch==={version}")
    lines = environments.requirements(changed, REQUIREMENTS)
    python = environments.installed("torch's CUDA build", lines, folder)

    cuda = output_of([python, "-c", "import torch; print(torch.version.cuda or '')"]).strip()
    if not cuda:
        raise UserError(f"{folder.name} has a torch without CUDA", "remove it, name another")
    return Path(python)


def libraries(python):
    """Return the folder with an environment's libraries, and build them if they are not newest."""
    folder = python.parents[1] / "virtual_gpu"
    torch = Path(output_of([python, "-c", "import torch; print(torch.__path__[0])"]).strip())
    packages = torch.parent

    # Nothing to do if no source is newer
    sources = sorted((HERE / "driver").iterdir())
    all_sources = [*sources, *(HERE / "emulation").iterdir(), Path(__file__)]
    newest = max(file.stat().st_mtime for file in all_sources)
    done = folder / "libnvidia-ml.so.1"
    if done.exists() and done.stat().st_mtime > newest:
        return folder

    # Object files
    folder.mkdir(exist_ok=True)
    nvidia = packages / "nvidia"
    headers = [nvidia / part / "include" for part in ("cu13", "cudnn", "nccl")]
    headers.append(packages / "triton" / "backends" / "nvidia" / "include")
    compiler = ["g++", "-O1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-w"]
    compiler += [f"-I{header}" for header in headers]
    objects = {}
    for source in sources:
        if source.suffix == ".cpp":
            objects[source.stem] = folder / f"{source.stem}.o"
            output_of([*compiler, "-c", source, "-o", objects[source.stem]])
    nvml = objects.pop("nvml")

    # libcuda
    stubs = folder / "stubs.c"
    stubs.write_text(_stubs(packages, objects.values()))
    shared = ["g++", "-shared", "-w", "-Wl,-soname,libcuda.so.1", "-x", "c", "-fPIC", stubs]
    library = folder / "libcuda.so.1"
    linked = [*objects.values(), "-o", library, "-ldl", "-lpthread", "-lrt"]
    output_of([*shared, "-x", "none", *linked])
    (folder / "libcuda.so").unlink(missing_ok=True)
    (folder / "libcuda.so").symlink_to(library.name)  # Triton links with this name

    # The emulation, and NVML last, as its time says that the build is done
    operators = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
    operators += [f"-I{torch / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    operators += [HERE / "emulation" / "operators.cpp", "-o", folder / "libemulation.so"]
    output_of([*operators, f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"])
    output_of(["g++", "-shared", "-Wl,-soname,libnvidia-ml.so.1", nvml, "-o", done])
    return folder


def _stubs(packages, objects):
    """Return C with a function without effect for each missing function of a vendor's library.

    Missing functions are those that torch refers to and the objects do not define.
    """
    # Functions that are linked
    users = [file for pattern in USERS for file in packages.glob(pattern)]
    requested = _symbols(users, "-D", "--undefined-only")
    vendors = [file for name in VENDORS for file in (packages / "nvidia").glob(f"{name}.*")]
    offered = _symbols(vendors, "-D", "--defined-only")

    # Functions that are looked up by name
    named = re.findall(r"\bcu[A-Z]\w+(?=[,()\s])", (packages / DRIVER_USER).read_text())
    looked_up = {name + suffix for name in DRIVER.union(named) for suffix in ("", "_v2")}

    # Those that driver/ does not define
    ours = _symbols(objects, "--defined-only")
    names = ((requested & offered) | looked_up) - ours - REAL
    names = sorted(name for name in names if name.startswith(("cu", "nccl", "__cuda")))
    return "".join(f"long {name}() {{ return 0; }}\n" for name in names)


def _symbols(files, *options):
    """Return the names of symbols in files. options: of nm."""
    lines = output_of(["nm", *options, *files]).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line and not line.endswith(":")}
