"""Commands of the project, run on the virtual GPU, and their outcomes."""

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from Utils.base.child import end, start
from Utils.base.paths import CACHE, ROOT
from Utils.results import rows_file

HERE = Path(__file__).parent
LIMIT_S = 1800  # seconds of a process
COUNTED = ("stream_syncs", "device_syncs", "event_syncs", "blocking_copies")


@dataclass
class Outcome:
    """What a command left.

    traceback: whether the output has one.
    row: the last one of the results file.
    steps: (launches, synchronizations, pageable copies) of each step of the command's process.
    """

    code: int
    seconds: float
    output: str
    traceback: bool
    row: dict
    steps: list


def run(python, arguments, profile="h100", emulated=False, **variables):
    """Return the Outcome of a command, which loads the virtual GPU instead of a driver.

    python: that of an environment with the libraries.
    arguments: those of Python, or of make if the first is "make".
    profile: a card of driver/profiles.h.
    emulated: whether operators compute, on the CPU.
    variables: to add to the environment.
    """
    with tempfile.TemporaryDirectory(prefix="virtual-gpu-") as name:
        folder = Path(name)
        results = folder / "results.csv"
        output = folder / "output"
        if arguments[0] == "make":
            command = ["make", "-s", *arguments[1:], f"PYTHON={python}", f"RESULTS_FILE={results}"]
        else:
            command = [python, *arguments, "--results-file", results]

        # Its environment
        libraries = python.parents[1] / "virtual_gpu"
        caches = CACHE / "virtual_gpu" / python.parents[1].name
        variables = os.environ | {
            "LD_PRELOAD": libraries / "libcuda.so.1",
            "LD_LIBRARY_PATH": libraries,
            "TRITON_LIBCUDA_PATH": libraries,
            "TORCHINDUCTOR_CACHE_DIR": caches / "inductor",
            "TRITON_CACHE_DIR": caches / "triton",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "VIRTUAL_GPU_PROFILE": profile,
            "VIRTUAL_GPU_MACHINE": folder / "machine",
            "VIRTUAL_GPU_TRACE": folder / "trace",
            **variables,
        }
        for name in ("CUDA_VISIBLE_DEVICES", "SUITE_ID", "RANK", "WORLD_SIZE", "PYTHONPATH"):
            variables.pop(name, None)
        if emulated:
            variables["VIRTUAL_GPU_EMULATION"] = libraries / "libemulation.so"
            variables["PYTHONPATH"] = HERE / "emulation"  # Python imports it first

        # Run, for a limited time
        began = time.monotonic()
        with output.open("w") as file:
            process = start(command, cwd=ROOT, env=variables, stdout=file, stderr=file)
            end(process, LIMIT_S)
        seconds = time.monotonic() - began

        # What it left
        rows = rows_file.read_as_texts(results)
        trace = folder / f"trace.{process.pid}"
        lines = trace.read_text().splitlines() if trace.exists() else []
        steps = []
        for line in lines[-len(rows) :]:  # the harness asks last for steps
            counts = json.loads(line)
            launches = counts["launches"] + counts["graph_launches"]
            synchronizations = sum(counts[name] for name in COUNTED)
            pageable_copies = counts["h2d_pageable"] + counts["d2h_pageable"]
            steps.append((launches, synchronizations, pageable_copies))
        text = output.read_text(errors="replace")
        return Outcome(
            code=process.returncode,
            seconds=round(seconds, 1),
            output=text,
            traceback="Traceback (most recent" in text,
            row=rows[-1] if rows else {},
            steps=steps,
        )
