"""Checks of the host here, and of torch in a subprocess: Findings, and a status a technique."""

import json
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

from Utils.base import child, paths
from Utils.base.errors import first_line
from Utils.base.units import GIB, MIB
from Utils.scripts import ladder

NEEDED_GIB = 2  # for tokens and compiled kernels
TORCH_S = 60  # importing torch from a slow disk takes half of it
PIP = f"{paths.PYTHON} -m pip install"
REQUIREMENTS = f"{PIP} -r requirements.txt"
UNASKED = "not checked"


@dataclass(frozen=True)
class Finding:
    """One line about this machine.

    state: "ok", "note", "fault", or "asking": the fault to report if the process ends before the
        next Finding.
    blocks: needs that this fault leaves unmet; every technique needs "run".
    """

    topic: str
    what: str
    state: str = "ok"
    remedy: str = ""
    blocks: tuple = ()


def ok(topic, text, remedy=""):
    """Return a Finding: a note if it has a remedy."""
    return Finding(topic, text, "note" if remedy else "ok", remedy)


def fault(topic, text, remedy, *blocks):
    return Finding(topic, text, "fault", remedy, blocks)


@dataclass(frozen=True)
class TechniqueStatus:
    """Whether a technique runs here.

    status: "runs", "runs without effect", "emulated" or "unsupported". reason: why unsupported.
    needs: names of its checks. notes: limits of a technique that runs.
    """

    technique: str
    status: str
    reason: str = ""
    needs: tuple = ()
    notes: tuple = ()


def ask(probe, args):
    """Yield the answers of a probe. An exception becomes a Finding."""
    try:
        yield from probe(args)
    except Exception as error:
        text = f"check failed: {type(error).__name__}: {first_line(error)}"
        yield Finding(probe.__name__.replace("_", " "), text, "note")


def packages(args):
    """Check the packages of requirements.txt. A missing one is a fault only for its users."""
    requirements = (paths.ROOT / "requirements.txt").read_text()
    names = re.findall(r"^([\w-]+)==", requirements, re.MULTILINE)
    missing = [name for name in names if not any(distributions(name=name))]
    packages = f", {len(names)} packages"
    remedy = ""
    if missing:
        packages = f"; not installed: {', '.join(missing)}"
        remedy = f"{PIP} {' '.join(missing)}"
    yield ok("python", f"{sys.executable} {sys.version.split()[0]}{packages}", remedy)


def disk(args):
    """Check that caches and temporary files can be written, and the free space."""
    # Folders that compilers and tokenizers write to.
    folders_by_variable = {
        "CACHE_DIR": [
            paths.CACHE,
            paths.CACHE / "tokens",
            *map(Path, paths.kernel_variables().values()),
        ],
        "TMPDIR": [Path(tempfile.gettempdir())],
    }
    for variable, folders in folders_by_variable.items():
        problem = next(filter(None, map(unwritable, folders)), "")
        if problem:
            remedy = f"set {variable} to another folder"
            yield fault("cache", problem, remedy, "compile", "triton")

    if paths.needs_quotes(sys.prefix):
        remedy = "make an environment in a folder without blanks; set PYTHON to it"
        yield fault("cache", f"{sys.prefix}: no compiler takes this path", remedy, "compile")

    free_gib = shutil.disk_usage(nearest(paths.CACHE)).free / GIB
    text = f"{paths.CACHE}: {free_gib:.1f} GiB free"
    remedy = f"free {NEEDED_GIB} GiB for tokens and kernels, or set CACHE_DIR to another disk"
    if free_gib < NEEDED_GIB:
        yield fault("cache", text, remedy)
    else:
        yield ok("cache", text)


def nearest(folder):
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def unwritable(folder):
    """Return why 1 MiB cannot be written to a folder, or "". The folder need not exist yet."""
    folder = nearest(folder.absolute())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(MIB))
            file.flush()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def examine(args):
    """Return Findings, and the TechniqueStatus of each technique.

    If the subprocess of `torch_side` crashes or hangs, the Finding that it announced last becomes
    a fault.
    """
    # The host, in this process; then torch, in a subprocess.
    findings = []
    for probe in (packages, disk):
        findings += ask(probe, args)
    rows = {n: TechniqueStatus(n, "unsupported", UNASKED) for n in ladder.techniques()}
    settings = json.dumps(vars(args), default=str)
    command = [sys.executable, "-P", "-m", "tools.doctor.torch_side", settings]
    done = child.run(command, paths.environment(), TORCH_S)
    remedy = f"{REQUIREMENTS}, with --force-reinstall; or omit PYTHON=, and .venv is created"
    if paths.VERSION:
        remedy = f"{PIP} --force-reinstall torch"
    announced = fault("torch", "cannot be imported", remedy, "run")

    # Each line of JSON is a status, a Finding, or an announcement of the next Finding.
    for line in done.output.splitlines():
        if not line.startswith('{"'):
            continue  # output of a library
        fields = json.loads(line)
        if "technique" in fields:
            rows[fields["technique"]] = TechniqueStatus(**fields)
        elif fields["state"] == "asking":
            announced = Finding(**fields)
        else:
            findings.append(Finding(**fields))
    if done.code != 0:
        what = f"{announced.what}: {done.reason}"
        findings.append(replace(announced, state="fault", what=what))

    faults = [finding for finding in findings if finding.state == "fault"]
    return findings, [overlay(row, faults) for row in rows.values()]


def overlay(row, faults):
    """Return the TechniqueStatus, as unsupported if a fault blocks one of its needs."""
    if row.status == "unsupported" and row.reason != UNASKED:
        return row
    for fault in faults:
        if {"run", *row.needs} & {*fault.blocks}:
            return replace(row, status="unsupported", reason=f"{fault.topic}: {fault.what}")
    return row
