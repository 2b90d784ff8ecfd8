"""Probes of the tool chain: a compiler, and Triton."""

import importlib.util
import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

from Utils.base import errors
from Utils.device import capabilities
from Utils.device.cpu import CPU
from Utils.device.mps import MPS
from Utils.doctor.findings import PATIENCE_S, Finding, fault

SOURCES = {  # like the code that Inductor and Triton generate
    "C++": "#include <omp.h>\n#include <Python.h>\nint n() { return omp_get_max_threads(); }\n",
    "C": "#include <Python.h>\nint n() { return PY_MAJOR_VERSION; }\n",
}


def compilers(args):
    """Check that the tool chain of torch.compile can compile, with two lines."""
    if isinstance(args.hardware, MPS):
        return  # macOS includes Metal's compiler
    on_cpu = isinstance(args.hardware, CPU)
    language, package = ("C++", "g++") if on_cpu else ("C", "gcc")
    remedy = f"apt-get install {package} python3-dev, or the equivalent"
    blocks = ("compile",) if on_cpu else ("compile", "triton")
    compiler = capabilities.compiler(language)
    if compiler is None:
        yield fault("compiler", f"no {language} compiler on PATH", remedy, *blocks)
    elif problem := compiling(compiler, language):
        yield fault("compiler", f"{compiler} cannot compile: {problem}", remedy, *blocks)
    else:
        with_it = "with OpenMP and Python's headers" if on_cpu else "with Python's headers"
        yield Finding("compiler", f"{compiler} compiles {language} {with_it}")
    yield from triton(compiler, on_cpu)


def triton(compiler, on_cpu):
    """Check that Triton finds driver and GPU. It compiles a module for that."""
    there = importlib.util.find_spec("triton")
    if on_cpu:
        found = version("triton") if there else "not installed"
        yield Finding("triton", f"{found}; not used on a CPU")
    elif not there:
        yield fault("triton", "not installed", "pip install triton", "compile", "triton")
    elif compiler:
        try:
            from triton.runtime import driver

            yield Finding("triton", f"{version('triton')}: {driver.active.get_current_target()}")
        except Exception as error:
            what = f"finds no GPU to compile for: {errors.first_line(error)}"
            remedy = "pip install --force-reinstall triton, in the version that torch requires"
            yield fault("triton", what, remedy, "compile", "triton")


def compiling(compiler, language):
    """Return a compiler's problem in one line, or ""."""
    source, flags = SOURCES[language], ["-fopenmp"]
    if language == "C" or sys.platform == "darwin":  # Apple's compiler has another flag
        source, flags = re.sub(r".*omp.*\n", "", source), []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "source.c" if language == "C" else "source.cpp")
        file.write_text(source)
        command = [compiler, "-shared", "-fPIC", *flags, f"-I{sysconfig.get_path('include')}"]
        command += [str(file), "-o", str(file.with_suffix(".so"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S / 2)
        except (OSError, subprocess.TimeoutExpired) as error:
            return getattr(error, "strerror", None) or str(error)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower()] or lines
    return wrong[0].replace(f"{folder}/", "") if wrong else f"exit code {done.returncode}"
