"""Several processes of one script at once.

They take turns of which all have the same: each waits after its warm-up until the others are ready.
"""

import os
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, UserError
from Utils.launch.child_process import why_ended
from Utils.launch.turn_taking import Member
from Utils.results import rows_file


class Failed(Exception):
    """A process ended without a timing: the message names it. Exit code 1."""


@dataclass
class Part:
    """Result of one process. began: seconds of the machine's monotonic clock; step_s: of the timed
    steps; tokens: per step; record: of the run."""

    began: float
    step_s: np.ndarray
    tokens: int
    peak_mib: float
    record: dict


def at_once(technique, n, flags, minutes, threads=None):
    """Run n processes of a technique at once. Return a list of Part.

    flags: of its script. minutes: until all are killed. threads: of each, or None for the default.
    Raises UserError, Unsupported or Failed, naming the process that could not run.
    """
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    suite = os.environ.get("SUITE", "")
    token = secrets.token_hex(4)
    end = time.monotonic() + 60 * minutes
    members = []
    paths.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="together-", dir=paths.CACHE) as scratch:
        files = [Path(scratch) / f"{i + 1}.csv" for i in range(n)]
        try:
            for file in files:
                own_flags = [*flags, f"--results-file={file}"]
                members.append(Member(technique, own_flags, suite, token, **variables))
            at_fault = _at_fault(members, end)
            if at_fault is None:
                go = time.monotonic()
                for member in members:
                    member.train(member.facts["left"])
                at_fault = _at_fault(members, end, codes=[0])
        finally:
            logs = [member.close() for member in members]
        if at_fault is None:
            return [_part(file, go) for file in files]
        who = f"{technique.name}, process {at_fault + 1} of {n}"
        rows = rows_file.text_rows(files[at_fault])
        if rows and rows[-1]["status"] != "ok":
            kind = Unsupported if rows[-1]["status"] == "unsupported" else Failed
            raise kind(f"{who}: {rows[-1]['status'].replace('_', ' ')}: {rows[-1]['note']}")
        if lines := [line for line in logs[at_fault].splitlines() if ": error: " in line]:
            raise UserError(lines[-1].partition(": error: ")[2])
        raise Failed(f"{who}: failed: {why_ended(members[at_fault].code, minutes)}")


def _at_fault(members, end, codes=()):
    """Wait until all have reported or ended. Return the number of the first that has ended with
    another exit code than these, or None."""
    for number, member in enumerate(members):
        member.listen(end)
        if member.facts is None and member.code not in codes:
            return number
    return None


def _part(file, go):
    """Return the Part of a process. go: when its turn, of one warm-up step, began."""
    rows = rows_file.text_rows(file)
    first = rows[0]
    timed = [row["phase"] == "timed" for row in rows]
    step_s = np.array([float(row["step_ms"]) for row in rows]) / 1e3
    return Part(
        began=go + step_s[timed.index(True) - 1],
        step_s=step_s[timed],
        tokens=int(first["batch_size"]) * int(first["seq_len"]),
        peak_mib=float(first["peak_memory_mib"]),
        record=rows_file.read_records(file, [first["run_id"]])[first["run_id"]],
    )


def measure(technique, args):
    """Measure one process alone and args.n at once, every other round in reverse order.

    Return two lists, with a list of Part for each round. A single process has its default threads;
    several share them.
    """
    alone, several = [], []
    for place, r in enumerate(range(args.round, args.round + args.rounds)):
        for n in (1, args.n) if place % 2 == 0 else (args.n, 1):
            number = len(alone) + len(several) + 1
            mode = "one alone" if n == 1 else f"{n} at once"
            print(f"[{number}/{2 * args.rounds}] round {r}, {mode}", file=sys.stderr, flush=True)
            share = max(1, alone[0][0].record["threads"] // n) if n > 1 else None
            flags = command_line.round_flags(args, r, min_seconds=0)  # all have the same steps
            parts = at_once(technique, n, flags, args.timeout, share)
            (alone if n == 1 else several).append(parts)
    return alone, several
