"""Commands of the project, run on the virtual GPU, and their outcomes.

A command that several checks need runs once.
"""

import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from Utils.base.child import end, start
from Utils.base.paths import CACHE, ROOT
from Utils.results import rows_file

HERE = Path(__file__).parent
KEPT = CACHE / "virtual_gpu"
LIMIT_S = 1800  # seconds of a process
COUNTED = ("stream_syncs", "device_syncs", "event_syncs", "blocking_copies")


@dataclass(frozen=True)
class Command:
    """A command: arguments of Python, or of make if the first is "make".

    profile: a card of driver/profiles.h. variables: to add to the environment.
    emulated: whether operators compute, on the CPU.
    """

    arguments: tuple
    profile: str = "h100"
    variables: dict = field(default_factory=dict)
    emulated: bool = False


@dataclass
class Outcome:
    """What a command left."""

    code: int
    seconds: float
    output: str
    traceback: bool  # whether the output has one
    runs: list  # the last row of each, with its number of rows and its record
    counts: list  # a dict for each step of the command's process
    processes: list  # `counts` of each process, if runs are several

    @property
    def row(self):
        """The last row of the results file, as in `runs`."""
        return self.runs[-1] if self.runs else {}

    @property
    def quality(self):
        """The quality in the last record."""
        return self.row.get("record", {}).get("quality") or {}

    def per_step(self, warmup, counts=None):
        """Return (launches, synchronizations, pageable copies) of each timed step.

        counts: those of a process, by default of the command itself.
        """
        return [
            (
                step["launches"] + step["graph_launches"],
                sum(step[name] for name in COUNTED),
                step["h2d_pageable"] + step["d2h_pageable"],
            )
            for step in (counts or self.counts)[warmup:]
        ]


class Machine:
    """The Python of an environment, with its libraries."""

    def __init__(self, python, libraries):
        self.python = python
        self.libraries = libraries
        self.outcomes = {}

    def run(self, command):
        """Return the Outcome of a command, from an earlier check if one has run it."""
        key = repr(command)
        if key not in self.outcomes:
            with tempfile.TemporaryDirectory(prefix="virtual-gpu-") as folder:
                self.outcomes[key] = self._run(command, Path(folder))
        return self.outcomes[key]

    def environment(self, command, folder):
        """Return the variables with which a command loads the virtual GPU instead of a driver."""
        caches = KEPT / self.python.parents[1].name
        variables = os.environ | {
            "LD_PRELOAD": self.libraries / "libcuda.so.1",
            "LD_LIBRARY_PATH": self.libraries,
            "TRITON_LIBCUDA_PATH": self.libraries,
            "TORCHINDUCTOR_CACHE_DIR": caches / "inductor",
            "TRITON_CACHE_DIR": caches / "triton",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "VIRTUAL_GPU_PROFILE": command.profile,
            "VIRTUAL_GPU_MACHINE": folder / "machine",
            "VIRTUAL_GPU_TRACE": folder / "trace",
            **command.variables,
        }
        for name in ("CUDA_VISIBLE_DEVICES", "SUITE_ID", "RANK", "WORLD_SIZE", "PYTHONPATH"):
            variables.pop(name, None)

        if command.emulated:
            variables["VIRTUAL_GPU_EMULATION"] = self.libraries / "libemulation.so"
            variables["PYTHONPATH"] = HERE / "emulation"  # Python imports it first
        return variables

    def _run(self, command, folder):
        """Return the Outcome of a command, run in an empty folder."""
        results = folder / "results.csv"
        if command.arguments[0] == "make":
            line = ["make", "-s", *command.arguments[1:]]
            line += [f"PYTHON={self.python}", f"RESULTS_FILE={results}"]
        else:
            line = [self.python, *command.arguments, "--results-file", results]

        # Run, for a limited time
        began = time.monotonic()
        with open(folder / "output", "w") as output:
            process = start(
                line,
                cwd=ROOT,
                env=self.environment(command, folder),
                stdout=output,
                stderr=output,
            )
            end(process, LIMIT_S)
        seconds = time.monotonic() - began

        return _outcome(folder, process.returncode, seconds, process.pid)


def _outcome(folder, code, seconds, pid):
    """Return the Outcome of a command that has ended, by the files in its folder."""
    # Rows and records
    results = folder / "results.csv"
    runs = []
    rows_by_run = {}
    for row in rows_file.read_as_texts(results):
        rows_by_run.setdefault(row["run_id"], []).append(row)
    records = rows_file.read_records(results, rows_by_run)
    for run_id, rows in rows_by_run.items():
        runs.append(rows[-1] | {"rows": len(rows), "record": records.get(run_id, {})})

    # Counts of steps by trace, for which the harness asks last
    counts = {}
    if runs:
        steps = max(run["rows"] for run in runs)
        for trace in folder.glob("trace.*"):
            lines = trace.read_text().splitlines()[-steps:]
            counts[trace.name] = [json.loads(line) for line in lines]

    text = (folder / "output").read_text(errors="replace")
    return Outcome(
        code=code,
        seconds=round(seconds, 1),
        output=text,
        traceback="Traceback (most recent" in text,
        runs=runs,
        counts=counts.get(f"trace.{pid}", []),
        processes=list(counts.values()) if len(runs) > 1 else [],
    )
