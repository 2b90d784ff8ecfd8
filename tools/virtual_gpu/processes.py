"""Commands of the project, run on the virtual GPU, and their outcomes."""

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
    row: dict  # the last one of the results file
    counts: list  # a dict for each step of the command's process

    def per_step(self, warmup):
        """Return (launches, synchronizations, pageable copies) of each timed step."""
        return [
            (
                step["launches"] + step["graph_launches"],
                sum(step[name] for name in COUNTED),
                step["h2d_pageable"] + step["d2h_pageable"],
            )
            for step in self.counts[warmup:]
        ]


@dataclass(frozen=True)
class Machine:
    """The Python of an environment, with its libraries."""

    python: Path
    libraries: Path

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

    def run(self, command):
        """Return the Outcome of a command."""
        with tempfile.TemporaryDirectory(prefix="virtual-gpu-") as name:
            folder = Path(name)
            results = folder / "results.csv"
            output = folder / "output"
            if command.arguments[0] == "make":
                line = ["make", "-s", *command.arguments[1:]]
                line += [f"PYTHON={self.python}", f"RESULTS_FILE={results}"]
            else:
                line = [self.python, *command.arguments, "--results-file", results]

            # Run, for a limited time
            began = time.monotonic()
            with output.open("w") as file:
                process = start(
                    line,
                    cwd=ROOT,
                    env=self.environment(command, folder),
                    stdout=file,
                    stderr=file,
                )
                end(process, LIMIT_S)
            seconds = time.monotonic() - began

            # What it left
            rows = rows_file.read_as_texts(results)
            trace = folder / f"trace.{process.pid}"
            lines = trace.read_text().splitlines() if trace.exists() else []
            text = output.read_text(errors="replace")
            return Outcome(
                code=process.returncode,
                seconds=round(seconds, 1),
                output=text,
                traceback="Traceback (most recent" in text,
                row=rows[-1] if rows else {},
                # The harness asks last for steps.
                counts=[json.loads(line) for line in lines[-len(rows) :]],
            )
