"""Several processes of one script at once.

They share one turn: each waits after its warm-up until all are ready.
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
from Utils.launch.turn_taking import Member, why_ended
from Utils.results import rows_file


class ProcessFailed(Exception):
    """A process ended without a timing. The message names it. Exit code 1."""


@dataclass
class ProcessResult:
    """Result of one of several processes at once."""

    began: float  # first timed step, in seconds of the machine's monotonic clock
    step_s: np.ndarray  # each timed step
    tokens: int  # per step
    peak_mib: float
    record: dict

    @classmethod
    def of(cls, file, go):
        """Read the result from a results file.

        go: time at which the process's turn began, with one step of warm-up.
        """
        rows = rows_file.read(file)
        first = rows.iloc[0]
        timed = (rows.phase == "timed").to_numpy()
        step_s = rows.step_ms.to_numpy() / 1e3

        return cls(
            began=go + step_s[timed.argmax() - 1],
            step_s=step_s[timed],
            tokens=int(first.batch_size * first.seq_len),
            peak_mib=float(first.peak_memory_mib),
            record=rows_file.read_records(file, [first.run_id])[first.run_id],
        )


def at_once(technique, n, flags, minutes, threads=None):
    """Run n processes of a technique at once. Return a list of ProcessResult.

    Raises UserError, Unsupported or ProcessFailed, naming the process that could not run.

    flags: those of its script.
    minutes: until all are killed.
    threads: those of each process; None for the default.
    """
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    suite = os.environ.get("SUITE_ID", "")
    token = secrets.token_hex(4)
    end = time.monotonic() + 60 * minutes
    members = []
    paths.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="together-", dir=paths.CACHE) as scratch:
        files = [Path(scratch) / f"{i + 1}.csv" for i in range(n)]
        try:
            for file in files:
                file_flags = [*flags, f"--results-file={file}"]
                members.append(Member(technique, file_flags, suite, token, **variables))

            # All begin when the last has warmed up.
            at_fault = _at_fault(members, end)
            if at_fault is None:
                go = time.monotonic()
                for member in members:
                    member.train(member.facts["left"])
                at_fault = _at_fault(members, end, codes=[0])
        finally:
            logs = [member.close() for member in members]

        if at_fault is None:
            return [ProcessResult.of(file, go) for file in files]

        # Say why a process could not run: by its row, its last error, or its exit code.
        process = f"{technique.name}, process {at_fault + 1} of {n}"
        rows = rows_file.read_as_texts(files[at_fault])
        status = rows[-1]["status"] if rows else "ok"
        if status != "ok":
            kind = Unsupported if status == "unsupported" else ProcessFailed
            raise kind(f"{process}: {status.replace('_', ' ')}: {rows[-1]['note']}")
        errors = [line for line in logs[at_fault].splitlines() if ": error: " in line]
        if errors:
            raise UserError(errors[-1].partition(": error: ")[2])
        raise ProcessFailed(f"{process}: failed: {why_ended(members[at_fault].code, minutes)}")


def _at_fault(members, end, codes=()):
    """Wait until all have reported or ended. Return the index of the first at fault, or None.

    codes: exit codes of a process that is not at fault.
    """
    for number, member in enumerate(members):
        member.listen(end)
        if member.facts is None and member.code not in codes:
            return number
    return None


def measure(technique, args):
    """Measure one process alone and args.n at once, every other round in reverse order.

    Return two lists, with a list of ProcessResult for each round. A single process has its default
    threads; several share them.
    """
    alone = []
    several = []
    for index, r in enumerate(range(args.round, args.round + args.rounds)):
        for n in (1, args.n) if index % 2 == 0 else (args.n, 1):
            number = len(alone) + len(several) + 1
            mode = "one alone" if n == 1 else f"{n} at once"
            print(f"[{number}/{2 * args.rounds}] round {r}, {mode}", file=sys.stderr, flush=True)

            share = max(1, alone[0][0].record["threads"] // n) if n > 1 else None
            flags = command_line.round_flags(args, r, min_seconds=0)  # all have the same steps
            parts = at_once(technique, n, flags, args.timeout, share)
            (alone if n == 1 else several).append(parts)
    return alone, several
