"""The largest batch that a technique can be run with on this device, found by running it."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from Utils.base import command_line, ladder, paths, results
from Utils.device.cpu import CPU

STEPS = 4  # of a trial: from the second on, the optimizer's state is there beside the gradients


def largest_batch(args, technique):
    """The largest power of two times args.batch_size at which a technique runs on this device.

    technique: whose script is tried, for a few steps and each time in a process of its own, so
        that what did not fit leaves nothing behind.
    A CPU's memory is large and its steps are long: there it is the largest that was faster than
    half of it, among those that can be tried in about the time that the run itself would take.
    The run's note tells both batches. All rounds of a suite take what the first of them found.
    """
    suite = os.environ.get("SUITE")
    kept = paths.CACHE / "suites" / f"{suite}-{args.technique}.json"
    known = suite and kept.exists()
    found = json.loads(kept.read_text()) if known else _search(args, technique)
    if suite:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    if found != args.batch_size:
        args.notes.append(f"own batch: {found} in place of {args.batch_size}")
    return found


def _search(args, technique):
    on_cpu = isinstance(args.hardware, CPU)
    best, speed, took, left = args.batch_size, 0.0, 0.0, math.inf
    if on_cpu:
        speed, took = _try(args, technique, best)
        left = args.steps * best * args.seq_len / speed if speed else 0.0
    while left > took:
        next_speed, took = _try(args, technique, 2 * best)
        if not next_speed or (on_cpu and next_speed <= speed):
            break
        if next_speed < speed / 2:  # some drivers move what does not fit to the host instead
            break
        best, speed, left = 2 * best, next_speed, left - took
    return best


def _try(args, technique, batch_size):
    """(tokens a second, 0.0 where it did not run; seconds that the trial took)."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.csv"
        flags = {"steps": STEPS, "warmup": 1, "batch_size": batch_size, "results_file": file}
        for name in ("seq_len", "model", "dataset", "device", "seed"):
            flags[name] = getattr(args, name)
        command = [sys.executable, *ladder.get(technique).command, *command_line.as_flags(flags)]
        subprocess.run(command, env=paths.environment(), capture_output=True)
        rows = results.check(file)
    status = rows[-1]["status"] if rows else "killed"
    speed, outcome = 0.0, status.replace("_", " ")
    if status == "ok":
        step_ms = median(float(row["step_ms"]) for row in rows if row["phase"] == "timed")
        speed = batch_size * args.seq_len / step_ms * 1e3
        outcome = f"{speed:,.0f} tokens/s"
    print(f"  {technique}, batch of {batch_size}: {outcome}", file=sys.stderr)
    return speed, time.monotonic() - start
