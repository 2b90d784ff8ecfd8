"""Probes that need no torch: Python, packages, processor, memory, disk, results."""

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.units import GIB
from Utils.device import cgroup
from Utils.doctor.findings import Finding, Subprocess, fault
from Utils.results import rows_file

OLDEST = (3, 11)  # Python
ROOM_GIB = 2  # for tokens and compiled kernels
REQUIREMENTS = "pip install -r requirements.txt"


def python(args):
    found = f"{sys.version.split()[0]}, {sys.executable}"
    if sys.version_info < OLDEST:
        oldest = "{}.{}".format(*OLDEST)
        remedy = f"set PYTHON to {oldest} or newer"
        yield fault("python", f"{found} is older than {oldest}", remedy, "run")
    else:
        yield Finding("python", found)


def packages(args):
    """Check the packages of requirements.txt. A missing one is a fault only for its users."""
    listed = (paths.ROOT / "requirements.txt").read_text()
    tested = re.findall(r"^([\w-]+)==([\w.]+)", listed, re.MULTILINE)
    missing, others = [], []
    for name, wanted in tested:
        try:
            if (found := version(name).split("+")[0]) != wanted:
                others.append(f"{name} {found}")
        except PackageNotFoundError:
            missing.append(name)
    yield Finding("packages", f"{len(tested) - len(missing)} of {len(tested)} required packages")
    if missing:
        yield Finding("packages", f"not installed: {', '.join(missing)}", "note", REQUIREMENTS)
    if others:
        yield Finding("packages", f"versions differ from those tested: {', '.join(others)}", "note")


def processor(args):
    """Check the cores that this process may use, and their load."""
    cores = os.cpu_count() or 1
    cpus = cgroup.usable_cpus()
    load = os.getloadavg()[0]
    what = f"{cores} logical CPUs, {cpus:g} usable by this process; 1-minute load {load:.1f}"
    figures = {"logical_cpus": cores, "usable_cpus": cpus, "load_1min": round(load, 1)}
    busy = load > cpus / 2
    remedy = "stop other programs before measuring: they share the CPU" if busy else ""
    yield Finding("processor", what, "note" if busy else "ok", remedy, figures=figures)


def memory(args):
    """Check the host's memory. Swap is listed apart: a step that swaps is not a measurement."""
    import psutil  # here, as doctor runs without it where it is missing

    host, (_, limit), swap = psutil.virtual_memory(), cgroup.cgroup_limits(), psutil.swap_memory()
    free = min(host.available, limit)
    what = f"{host.total / GIB:.1f} GiB in total, {host.available / GIB:.1f} available"
    if limit < host.total:
        what += f", {limit / GIB:.1f} allowed by the control group"
    what += f"; {swap.used / GIB:.1f} GiB of {swap.total / GIB:.1f} swapped" if swap.total else ""
    figures = {"memory_gib": round(host.total / GIB, 1), "available_gib": round(free / GIB, 1)}
    yield Finding("memory", what, figures=figures)
    with suppress(OSError):  # only Linux has it
        shared = shutil.disk_usage("/dev/shm").free
        if shared < 16 * 2**20:
            what = f"/dev/shm has {shared / 2**20:.0f} MiB free"
            remedy = "start the container with --shm-size=1g or --ipc=host"
            yield fault("memory", f"{what}; a loader passes batches there", remedy)


def disk(args):
    """Check that caches and temporary files can be written, and the free space."""
    kernels = ("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")
    kept = [Path(os.environ.get(variable, paths.CACHE / name)) for variable, name in kernels]
    for folder in dict.fromkeys([paths.CACHE, paths.CACHE / "tokens", *kept]):
        if problem := unwritable(folder):
            blocks = ["compile", "triton"]
            if not kept[0].exists() and unwritable(kept[0]):
                blocks = ["run"]  # any optimizer of torch makes Inductor's folder when it is made
            yield fault("cache", problem, "set CACHE_DIR to another folder", *blocks)
            break
    else:
        free = shutil.disk_usage(nearest(paths.CACHE)).free / GIB
        figures = {"free_disk_gib": round(free, 1)}
        what, short = f"{paths.CACHE}: {free:.1f} GiB free", free < ROOM_GIB
        remedy = f"free {ROOM_GIB} GiB for tokens and kernels, or set CACHE_DIR to another disk"
        yield Finding("cache", what, *(("fault", remedy) if short else ()), figures=figures)
    try:
        problem = unwritable(Path(tempfile.gettempdir()))
    except FileNotFoundError as error:
        problem = error.strerror
    if problem:
        yield fault("cache", problem, "set TMPDIR to another folder", "compile", "triton")


def results_file(args):
    path = args.results_file
    try:
        rows = rows_file.check(path)
        if problem := unwritable(path.parent / "runs"):
            raise UserError(problem)
    except UserError as error:
        remedy = error.remedy or "set RESULTS_FILE to another file"
        yield fault("results", error.message, remedy, "run")
        return
    runs = len({row["run_id"] for row in rows})
    what = f"{path}: {runs} runs" if rows else f"{path}: will be created"
    yield Finding("results", what, figures={"runs": runs})


OUTSIDE = (python, packages, processor, memory, disk, results_file)


def nearest(folder):
    """Return the folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def unwritable(folder):
    """Return why a folder, which need not exist yet, cannot be written, or ""."""
    place = nearest(folder.absolute())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(2**20))
            file.flush()
        return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


NATIVE = {
    "bitsandbytes": """
import bitsandbytes.optim
from bitsandbytes import cextension
error = vars(cextension.lib).get("error_msg")  # else it would come with the first call
if error and getattr(cextension, "BNB_BACKEND", "") not in ("CPU", "XPU"):
    raise ImportError("its native library: " + error)
""",
    "torchao": "import torchao.float8",
}
ONE_AFTER_THE_OTHER = """
import json, sys
for name, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, {})
        problem = ""
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}".split(chr(10))[0]
    print("\\n" + json.dumps({name: problem}), flush=True)
"""


def start_native():
    """Start the imports of installed packages, in one process: each would import torch again."""
    there = {name: code for name, code in NATIVE.items() if importlib.util.find_spec(name)}
    return Subprocess("-c", ONE_AFTER_THE_OTHER, json.dumps(there))


def native(started):
    output, _ = started.end()
    problems = {}
    for line in output.splitlines():
        if line.startswith("{"):
            problems |= json.loads(line)
    for name, code in NATIVE.items():
        if importlib.util.find_spec(name) is None:
            yield fault(name, "not installed", f"pip install {name}", name)
            continue
        if name not in problems:  # the process ended before its answer
            problems[name] = Subprocess("-c", code).end()[1]
        installed = "of unknown version"
        with suppress(PackageNotFoundError):
            installed = version(name)
        if problem := problems[name]:
            what = f"{installed}, cannot be imported: {textwrap.shorten(problem, 200)}"
            yield fault(name, what, f"pip install --force-reinstall {name}", name)
        else:
            yield Finding(name, f"{installed}, can be imported")
