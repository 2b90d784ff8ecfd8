"""The largest batch at which a technique runs on this device, found by trials."""

import math
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from Utils.base import child, command_line, files, paths
from Utils.device.cpu import CPU
from Utils.harness.settings import Settings
from Utils.results import rows_file
from Utils.scripts import ladder

STEPS = 4  # steps of a trial: from the second on, optimizer state and gradients are both allocated
SLOWER = 0.5  # share of the last speed: some drivers move excess memory to the host instead


def with_largest_batch(args: Settings, technique: str, at_most: int) -> Settings:
    """Return args with the largest batch, by doubling, at which a technique runs here.

    A CPU has much memory and slow steps. There the batch doubles only while that is faster, and
    trials take about as long as the run itself. All rounds of a suite use the result of the first.

    technique: name of the script, which is tried in a new process each time.
    at_most: end of the search.
    """
    suite = os.environ.get("SUITE_ID")
    cached = paths.CACHE / "suites" / f"{suite}-{args.technique}.json"

    best = files.read_cache(cached, int) or _search(args, technique, at_most)
    if suite:
        files.write_json(cached, best)
    if best != args.batch_size:
        args.outcome.notes.append(f"own batch: {best} in place of {args.batch_size}")
    return args.replace(batch_size=best)


def _search(args, technique, at_most):
    """Double the batch until a trial fails or is slow, or time is up. Return the last good one."""
    best = args.batch_size
    on_cpu = isinstance(args.hardware, CPU)
    speed, seconds = run_trial(args, technique, best)
    left_s = math.inf
    if on_cpu:
        left_s = args.steps * best * args.seq_len / speed if speed else 0.0

    while 2 * best <= at_most and left_s > seconds:
        doubled_speed, seconds = run_trial(args, technique, 2 * best)
        too_slow = doubled_speed < SLOWER * speed or (on_cpu and doubled_speed <= speed)
        if not doubled_speed or too_slow:
            break
        best = 2 * best
        speed = doubled_speed
        left_s -= seconds
    return best


def run_trial(args: Settings, technique: str, batch_size: int) -> tuple[float, float]:
    """Run a few steps, and print how they ended.

    Return the tokens per second, 0.0 if the steps did not run, and the seconds of the trial.
    """
    start = time.monotonic()
    flags = {
        name: getattr(args, name) for name in ("seq_len", "model", "dataset", "device", "seed")
    }
    flags |= {"steps": STEPS, "warmup": 1, "min_seconds": 0, "batch_size": batch_size}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.csv"
        flags["results_file"] = file
        command = [sys.executable, *ladder.get(technique).command, *command_line.as_flags(flags)]
        done = child.run(command, paths.environment())
        rows = rows_file.read_as_texts(file)

    speed = 0.0
    if rows and rows[-1]["status"] == "ok":
        step_ms = median(float(row["step_ms"]) for row in rows if row["phase"] == "timed")
        speed = batch_size * args.seq_len / step_ms * 1e3
        outcome = f"{speed:,.0f} tokens/s"
    elif rows:
        status = rows[-1]["status"].replace("_", " ")
        outcome = ": ".join(filter(None, [status, rows[-1]["note"]]))
    else:
        outcome = done.reason
    print(f"  {technique}, batch of {batch_size}: {outcome}", file=sys.stderr)
    return speed, time.monotonic() - start
