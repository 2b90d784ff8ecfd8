"""Probes that need no torch: Python, packages, processor, memory, disk, results."""

import os
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.units import GIB, MIB
from Utils.device import cgroup
from Utils.doctor.findings import Finding, fault

OLDEST = (3, 11)  # Python
NEEDED_GIB = 2  # for tokens and compiled kernels
SHARED_MIB = 16  # for batches of a loader
REQUIREMENTS = "pip install -r requirements.txt"


def python(args):
    text = f"{sys.version.split()[0]}, {sys.executable}"
    if sys.version_info < OLDEST:
        oldest = "{}.{}".format(*OLDEST)
        text += f" is older than {oldest}"
        yield fault("python", text, f"set PYTHON to {oldest} or newer", "run")
    else:
        yield Finding("python", text)


def packages(args):
    """Check the packages of requirements.txt. A missing one is a fault only for its users."""
    requirements = (paths.ROOT / "requirements.txt").read_text()
    tested = dict(re.findall(r"^([\w-]+)==([\w.]+)", requirements, re.MULTILINE))
    installed = {}
    for name in tested:
        with suppress(PackageNotFoundError):
            installed[name] = version(name).split("+")[0]
    missing = [name for name in tested if name not in installed]
    differing = [f"{name} {has}" for name, has in installed.items() if has != tested[name]]
    yield Finding("packages", f"{len(installed)} of {len(tested)} required packages")
    if missing:
        yield Finding("packages", f"not installed: {', '.join(missing)}", "note", REQUIREMENTS)
    if differing:
        text = f"versions differ from those tested: {', '.join(differing)}"
        yield Finding("packages", text, "note")


def processor(args):
    """Check the cores that this process may use, and their load."""
    cores = os.cpu_count() or 1
    cpus = cgroup.usable_cpus()
    load = os.getloadavg()[0]
    text = f"{cores} logical CPUs, {cpus:g} usable by this process; 1-minute load {load:.1f}"
    figures = {"logical_cpus": cores, "usable_cpus": cpus, "load_1min": round(load, 1)}
    if load > cpus / 2:
        remedy = "stop other programs before measuring: they share the CPU"
        yield Finding("processor", text, "note", remedy, figures=figures)
    else:
        yield Finding("processor", text, figures=figures)


def memory(args):
    """Check the host's memory. Swap is listed apart: a step that swaps is not a measurement."""
    import psutil  # here, as doctor runs without it where it is missing

    host = psutil.virtual_memory()
    swap = psutil.swap_memory()
    limit = cgroup.cgroup_limits()[1]
    text = f"{host.total / GIB:.1f} GiB in total, {host.available / GIB:.1f} available"
    if limit < host.total:
        text += f", {limit / GIB:.1f} allowed by the control group"
    if swap.total:
        text += f"; {swap.used / GIB:.1f} GiB of {swap.total / GIB:.1f} swapped"
    figures = {"memory_gib": host.total / GIB, "available_gib": min(host.available, limit) / GIB}
    figures = {name: round(gib, 1) for name, gib in figures.items()}
    yield Finding("memory", text, figures=figures)
    with suppress(OSError):  # only Linux has it
        shared_mib = shutil.disk_usage("/dev/shm").free / MIB
        if shared_mib < SHARED_MIB:
            text = f"/dev/shm has {shared_mib:.0f} MiB free; a loader passes batches there"
            yield fault("memory", text, "start the container with --shm-size=1g or --ipc=host")


def disk(args):
    """Check that caches and temporary files can be written, and the free space."""
    inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", paths.kernels("inductor")))
    triton = Path(os.environ.get("TRITON_CACHE_DIR", paths.kernels("triton")))
    problems = map(unwritable, [paths.CACHE, paths.CACHE / "tokens", inductor, triton])
    problem = next(filter(None, problems), "")
    free_gib = shutil.disk_usage(nearest(paths.CACHE)).free / GIB
    text = f"{paths.CACHE}: {free_gib:.1f} GiB free"
    if not inductor.is_relative_to(paths.CACHE):
        text += f"; compiled kernels are in {inductor.parent}"
    if paths.needs_quotes(sys.prefix):
        remedy = "make an environment in a folder without blanks; set PYTHON to it"
        yield fault("cache", f"{sys.prefix}: no compiler takes this path", remedy, "compile")
    if problem:
        # Any optimizer of torch makes Inductor's folder when it is made.
        without_it = not inductor.exists() and unwritable(inductor)
        blocks = ["run"] if without_it else ["compile", "triton"]
        yield fault("cache", problem, "set CACHE_DIR to another folder", *blocks)
    elif free_gib < NEEDED_GIB:
        remedy = f"free {NEEDED_GIB} GiB for tokens and kernels, or set CACHE_DIR to another disk"
        yield fault("cache", text, remedy)
    else:
        yield Finding("cache", text, figures={"free_disk_gib": round(free_gib, 1)})
    try:
        problem = unwritable(Path(tempfile.gettempdir()))
    except FileNotFoundError as error:
        problem = error.strerror
    if problem:
        yield fault("cache", problem, "set TMPDIR to another folder", "compile", "triton")


def results_file(args):
    from Utils.results import rows_file  # here, as doctor runs without its packages as well

    path = args.results_file
    try:
        rows_file.check(path)
        runs = rows_file.read(path).run_id.nunique() if rows_file.has_rows(path) else 0
    except UserError as error:
        remedy = error.remedy or "set RESULTS_FILE to another file"
        yield fault("results", error.message, remedy, "run")
        return
    text = f"{path}: {runs} runs" if runs else f"{path}: will be created"
    yield Finding("results", text, figures={"runs": runs})


HOST_PROBES = (python, packages, processor, memory, disk, results_file)


def nearest(folder):
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def unwritable(folder):
    """Return why 1 MiB cannot be written to a folder, which need not exist yet, or ""."""
    folder = nearest(folder.absolute())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(MIB))
            file.flush()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""
