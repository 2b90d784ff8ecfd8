"""The largest batch at which a technique runs on this device, found by trials."""

import json
import math
import os
import sys
import time
from statistics import median
from typing import NamedTuple

from Utils.base import command_line, files, paths
from Utils.device.cpu import CPU
from Utils.launch import child_process
from Utils.scripts import ladder

STEPS = 4  # of a trial; from the second on, optimizer state and gradients are both allocated
SLOWER = 0.5  # of the last speed: some drivers move excess memory to the host instead


class Trial(NamedTuple):
    """Outcome of a few steps at one batch size.

    tokens_per_second: 0.0 where it did not run. seconds: of the trial. outcome: in words.
    """

    tokens_per_second: float
    seconds: float
    outcome: str


def largest_batch(args, technique, at_most):
    """Return the largest power of two times args.batch_size at which a technique runs here.

    technique: name of the script to try, each time in a new process. at_most: end of the search.
    A CPU has much memory and slow steps: there the batch doubles only while that is faster, within
    about the time of the run itself. All rounds of a suite take the result of the first.
    """
    suite = os.environ.get("SUITE")
    cached = paths.CACHE / "suites" / f"{suite}-{args.technique}.json"
    if suite and cached.exists():
        batch_size = json.loads(cached.read_text())
    else:
        batch_size = _search(args, technique, at_most)
    if suite:
        files.write_json(cached, batch_size)
    if batch_size != args.batch_size:
        args.notes.append(f"own batch: {batch_size} in place of {args.batch_size}")
    return batch_size


def _search(args, technique, at_most):
    """Double the batch while it runs and is not slower."""
    on_cpu = isinstance(args.hardware, CPU)
    best = args.batch_size
    last = run(args, technique, best)
    speed = last.tokens_per_second
    left_s = math.inf
    if on_cpu:
        left_s = args.steps * best * args.seq_len / speed if speed else 0.0
    while 2 * best <= at_most and left_s > last.seconds:
        last = run(args, technique, 2 * best)
        if not last.tokens_per_second or last.tokens_per_second < SLOWER * speed:
            break
        if on_cpu and last.tokens_per_second <= speed:
            break
        best = 2 * best
        speed = last.tokens_per_second
        left_s -= last.seconds
    return best


def run(args, technique, batch_size):
    """Run a Trial, and print its outcome."""
    start = time.monotonic()
    flags = {"steps": STEPS, "warmup": 1, "min_seconds": 0, "batch_size": batch_size}
    same = ("seq_len", "model", "dataset", "device", "seed")
    flags |= {name: getattr(args, name) for name in same}
    rows, done = child_process.trial(ladder.get(technique).command, command_line.as_flags(flags))
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
    return Trial(speed, time.monotonic() - start, outcome)
