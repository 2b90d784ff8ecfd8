"""Probes that need no torch: packages, shared memory, disk, results."""

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
from Utils.doctor.findings import fault, ok

NEEDED_GIB = 2  # for tokens and compiled kernels
SHARED_MIB = 16  # for batches of a loader
REQUIREMENTS = "pip install -r requirements.txt"


def packages(args):
    """Check the packages of requirements.txt. A missing one is a fault only for its users."""
    requirements = (paths.ROOT / "requirements.txt").read_text()
    names = re.findall(r"^([\w-]+)==", requirements, re.MULTILINE)
    missing = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    text = f"{sys.executable} {sys.version.split()[0]}"
    text += f"; not installed: {', '.join(missing)}" if missing else f", {len(names)} packages"
    yield ok("python", text, REQUIREMENTS if missing else "")


def shared_memory(args):
    with suppress(OSError):  # only Linux has it
        shared_mib = shutil.disk_usage("/dev/shm").free / MIB
        if shared_mib < SHARED_MIB:
            text = f"/dev/shm has {shared_mib:.0f} MiB free; a loader passes batches there"
            yield fault("memory", text, "start the container with --shm-size=1g or --ipc=host")


def disk(args):
    """Check that caches and temporary files can be written, and the free space."""
    inductor = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", paths.kernels("inductor")))
    triton = Path(os.environ.get("TRITON_CACHE_DIR", paths.kernels("triton")))
    caches = [paths.CACHE, paths.CACHE / "tokens", inductor, triton]
    for variable, folders in (("CACHE_DIR", caches), ("TMPDIR", [Path(tempfile.gettempdir())])):
        if problem := next(filter(None, map(unwritable, folders)), ""):
            remedy = f"set {variable} to another folder"
            yield fault("cache", problem, remedy, "compile", "triton")
    if paths.needs_quotes(sys.prefix):
        remedy = "make an environment in a folder without blanks; set PYTHON to it"
        yield fault("cache", f"{sys.prefix}: no compiler takes this path", remedy, "compile")
    free_gib = shutil.disk_usage(nearest(paths.CACHE)).free / GIB
    text = f"{paths.CACHE}: {free_gib:.1f} GiB free"
    if free_gib < NEEDED_GIB:
        remedy = f"free {NEEDED_GIB} GiB for tokens and kernels, or set CACHE_DIR to another disk"
        yield fault("cache", text, remedy)
    else:
        yield ok("cache", text)


def results_file(args):
    from Utils.results import rows_file  # here, as doctor runs without its packages as well

    try:
        rows_file.check(args.results_file)
        yield ok("results", f"{args.results_file}: can be written")
    except UserError as error:
        remedy = error.remedy or "set RESULTS_FILE to another file"
        yield fault("results", error.message, remedy, "run")


HOST_PROBES = (packages, shared_memory, disk, results_file)


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
