"""Functions that programs request of NVIDIA's libraries and that driver/ does not define.

    .venv/bin/python -m tools.virtual_gpu.stubs PACKAGES OBJECTS...

Print them as C, for the Makefile.
"""

import re
import sys
from pathlib import Path

from Utils.base.child import output_of

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


def stubs(packages, objects):
    """Return C with a function without effect for each missing function of a vendor's library.

    Missing functions are those that torch refers to and the objects do not define.
    """
    # Functions that are linked
    users = [file for pattern in USERS for file in packages.glob(pattern)]
    requested = symbols(users, "-D", "--undefined-only")
    vendors = [file for name in VENDORS for file in (packages / "nvidia").glob(f"{name}.*")]
    offered = symbols(vendors, "-D", "--defined-only")

    # Functions that are looked up by name
    named = re.findall(r"\bcu[A-Z]\w+(?=[,()\s])", (packages / DRIVER_USER).read_text())
    looked_up = {name + suffix for name in DRIVER.union(named) for suffix in ("", "_v2")}

    # Those that driver/ does not define
    ours = symbols(objects, "--defined-only")
    names = ((requested & offered) | looked_up) - ours - REAL
    names = sorted(name for name in names if name.startswith(("cu", "nccl", "__cuda")))
    return "".join(f"long {name}() {{ return 0; }}\n" for name in names)


def symbols(files, *options):
    """Return the names of symbols in files. options: of nm."""
    lines = output_of(["nm", *options, *files]).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line and not line.endswith(":")}


if __name__ == "__main__":
    print(stubs(Path(sys.argv[1]), sys.argv[2:]))
