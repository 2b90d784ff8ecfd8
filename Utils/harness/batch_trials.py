"""The largest batch at which a technique runs on this device, found by trials."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from Utils.base import command_line, files, paths
from Utils.device.cpu import CPU
from Utils.results import rows_file
from Utils.scripts import ladder

STEPS = 4  # of a trial; from the second on, optimizer state and gradients are both allocated
SLOWER = 0.5  # of the last speed: some drivers move excess memory to the host instead


def largest_batch(args, technique, at_most):
    """Return the largest power of two times args.batch_size at which a technique runs here.

    technique: name of the script to try, each time in a new process. at_most: end of the search.
    A CPU has much memory and slow steps: there the batch doubles only while that is faster, within
    about the time of the run itself. All rounds of a suite take the result of the first.
    """
    suite = os.environ.get("SUITE_ID")
    cached = paths.CACHE / "suites" / f"{suite}-{args.technique}.json"
    if suite and cached.exists():
        best = json.loads(cached.read_text())
    else:
        best = args.batch_size
        on_cpu = isinstance(args.hardware, CPU)
        speed, seconds = run(args, technique, best)
        left_s = math.inf
        if on_cpu:
            left_s = args.steps * best * args.seq_len / speed if speed else 0.0
        while 2 * best <= at_most and left_s > seconds:
            doubled, seconds = run(args, technique, 2 * best)
            if not doubled or doubled < SLOWER * speed or (on_cpu and doubled <= speed):
                break
            best = 2 * best
            speed = doubled
            left_s -= seconds
    if suite:
        files.write_json(cached, best)
    if best != args.batch_size:
        args.notes.append(f"own batch: {best} in place of {args.batch_size}")
    return best


def run(args, technique, batch_size):
    """Run a few steps, and print how they ended. Return the tokens per second, 0.0 where they did
    not run, and the seconds that it took.
    """
    start = time.monotonic()
    flags = {"steps": STEPS, "warmup": 1, "min_seconds": 0, "batch_size": batch_size}
    same = ("seq_len", "model", "dataset", "device", "seed")
    flags |= {name: getattr(args, name) for name in same}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.csv"
        flags["results_file"] = file
        command = [sys.executable, *ladder.get(technique).command, *command_line.as_flags(flags)]
        done = subprocess.run(command, env=paths.environment(), capture_output=True, text=True)
        rows = rows_file.text_rows(file)
    speed = 0.0
    if rows and rows[-1]["status"] == "ok":
        step_ms = median(float(row["step_ms"]) for row in rows if row["phase"] == "timed")
        speed = batch_size * args.seq_len / step_ms * 1e3
        outcome = f"{speed:,.0f} tokens/s"
    elif rows:
        status = rows[-1]["status"].replace("_", " ")
        outcome = ": ".join(filter(None, [status, rows[-1]["note"]]))
    else:
        last_lines = done.stderr.strip().splitlines()[-1:]
        outcome = " ".join([f"ended with exit code {done.returncode}", *last_lines])
    print(f"  {technique}, batch of {batch_size}: {outcome}", file=sys.stderr)
    return speed, time.monotonic() - start
