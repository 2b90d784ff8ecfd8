"""Probes of the tool chain: a compiler, and packages with native code."""

import importlib
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from dataclasses import replace

from Utils.base import errors
from Utils.device import capabilities
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS
from Utils.doctor.findings import Finding, fault, ok

SOURCES = {  # like the code that Triton and Inductor generate
    "C": "#include <Python.h>\nint n() { return PY_MAJOR_VERSION; }\n",
    "C++": "#include <omp.h>\n#include <Python.h>\nint n() { return omp_get_max_threads(); }\n",
}
COMPILER_S = 20  # time in which two lines are compiled


def compilers(args):
    """Check that the tool chain of torch.compile can compile, with two lines."""
    if isinstance(args.hardware, MPS):
        return  # macOS includes Metal's compiler
    on_cpu = isinstance(args.hardware, CPU)
    language, package = ("C++", "g++") if on_cpu else ("C", "gcc")
    blocks = ["compile"] if on_cpu else ["compile", "triton"]
    compiler = capabilities.compiler(language)
    problem = f"no {language} compiler on PATH"
    if compiler:
        problem = compiling(compiler, language)
    if problem:
        remedy = f"apt-get install {package} python3-dev, or the equivalent"
        yield fault("compiler", problem, remedy, *blocks)
    else:
        yield ok("compiler", f"{compiler} compiles {language} with Python's headers")


def compiling(compiler, language):
    """Return a compiler's problem in one line, or ""."""
    source = SOURCES[language]
    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    if sys.platform == "darwin":
        source = SOURCES["C"]  # Apple's compiler has another flag for OpenMP
    elif language == "C++":
        flags.append("-fopenmp")
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, *flags, "-x", language.lower(), "-", "-o", f"{folder}/library.so"]
        try:
            done = subprocess.run(
                command, input=source, capture_output=True, text=True, timeout=COMPILER_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{compiler}: {error}"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
    return f"{compiler} cannot compile: {[*lines, f'exit code {done.returncode}'][0]}"


def _try_triton():
    importlib.import_module("triton.runtime").driver.active.get_current_target()


def _try_torchao():
    importlib.import_module("torchao.float8")


def _try_bitsandbytes():
    importlib.import_module("bitsandbytes.optim")
    cextension = importlib.import_module("bitsandbytes.cextension")
    # A library that could not be loaded raises with its first call only.
    error = vars(cextension.lib).get("error_msg")
    if error and getattr(cextension, "BNB_BACKEND", "") not in ("CPU", "XPU"):
        raise ImportError(f"its native library: {error}")


NATIVE = {"triton": _try_triton, "torchao": _try_torchao, "bitsandbytes": _try_bitsandbytes}


def native_packages(args):
    """Check packages with native code. Each is announced, as its import may end the process."""
    on_cuda = isinstance(getattr(args, "hardware", None), CUDA)
    for name, try_out in NATIVE.items():
        if name == "triton" and not (on_cuda and capabilities.compiler("C")):
            continue  # it is not used, or cannot be tried
        blocks = ["compile", "triton"] if name == "triton" else [name]
        if importlib.util.find_spec(name) is None:
            yield fault(name, "not installed", f"pip install {name}", *blocks)
            continue
        remedy = f"pip install --force-reinstall {name}, in a version for this torch"
        announced = Finding(name, "cannot be used", "asking", remedy, blocks)
        yield announced
        try:
            try_out()
        except BaseException as error:
            problem = textwrap.shorten(f"{type(error).__name__}: {errors.first_line(error)}", 200)
            yield replace(announced, state="fault", what=f"{announced.what}: {problem}")
        else:
            yield ok(name, "can be used")
