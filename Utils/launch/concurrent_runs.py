"""Several processes of one script at once."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, UserError
from Utils.launch.child_process import why_ended
from Utils.results import records_file, rows_file
from Utils.run import Run, execute
from Utils.scripts import variants


class Failed(Exception):
    """A process ended without a timing: the message names it. Exit code 1."""


class RunAmongOthers(Run):
    """A Run that waits after its warm-up until all others are ready, and records the moment.

    go: threading.Event, set when all are ready.
    """

    def __init__(self, go, args, model, optimizer):
        super().__init__(args, model, optimizer)
        self.go, self.folder = go, args.results_file.parent

    def steps(self, batches):
        for step, batch in enumerate(super().steps(batches)):
            if step == self.args.warmup:  # it began before its batch was loaded
                self.began = time.monotonic() - self.data_ms[-1] / 1e3
            yield batch
            if step + 1 == self.args.warmup:
                self.args.hardware.elapsed_ms([self.args.hardware.mark()])  # waits for the device
                (self.folder / "ready").touch()
                self.go.wait()

    def __exit__(self, kind, *error):
        super().__exit__(kind, *error)
        if kind is None:
            (self.folder / "began").write_text(str(self.began))


def take_part():
    """Run one of the processes. Its command line: NAME and the flags of the script."""
    name, *flags = sys.argv[1:]
    go = threading.Event()
    threading.Thread(target=_listen, args=(go,), daemon=True).start()
    execute(variants.find(name), flags, partial(RunAmongOthers, go), passes=lambda error: False)


def _listen(go):
    """Set `go` at a line of standard input; kill this group when it ends with the parent."""
    if os.read(0, 1):
        go.set()
        os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # including a loader's workers


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
    end = time.monotonic() + 60 * minutes
    waiting = True  # until all are ready
    paths.CACHE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="together-", dir=paths.CACHE) as scratch,
        ExitStack() as stack,
    ):
        folders = [Path(scratch) / str(i + 1) for i in range(n)]
        processes = [stack.enter_context(_started(technique, f, flags, variables)) for f in folders]
        while True:
            codes = [process.poll() for process in processes]
            at_fault = [i for i, code in enumerate(codes) if code or (waiting and code == 0)]
            if None in codes and time.monotonic() > end:
                at_fault.append(codes.index(None))
            for i in at_fault:
                who = f"{technique.name}, process {i + 1} of {n}"
                raise _failure(who, folders[i], why_ended(codes[i], minutes))
            if None not in codes:
                return [_part(folder) for folder in folders]
            if waiting and all((folder / "ready").exists() for folder in folders):
                waiting = False
                for process in processes:
                    os.write(process.stdin.fileno(), b"\n")
            time.sleep(0.02)


@contextmanager
def _started(technique, folder, flags, variables):
    """Start a process of a technique; kill it and its children at the end of the block."""
    folder.mkdir()
    command = [
        sys.executable,
        "-c",
        "from Utils.launch import concurrent_runs; concurrent_runs.take_part()",
    ]
    command += [technique.name, *flags, f"--results-file={folder / 'results.csv'}"]
    how = {"env": paths.environment(**variables), "start_new_session": True}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, **how)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.wait()


def _part(folder):
    file = folder / "results.csv"
    rows = rows_file.text_rows(file)
    first = rows[0]
    return Part(
        began=float((folder / "began").read_text()),
        step_s=np.array([float(r["step_ms"]) for r in rows if r["phase"] == "timed"]) / 1e3,
        tokens=int(first["batch_size"]) * int(first["seq_len"]),
        peak_mib=float(first["peak_memory_mib"]),
        record=records_file.read(file, [first["run_id"]])[first["run_id"]],
    )


def _failure(who, folder, reason):
    """Return the exception for a process without timing. reason: where it left none itself."""
    rows, log = rows_file.text_rows(folder / "results.csv"), (folder / "log").read_text()
    if rows and rows[-1]["status"] != "ok":
        kind = Unsupported if rows[-1]["status"] == "unsupported" else Failed
        return kind(f"{who}: {rows[-1]['status'].replace('_', ' ')}: {rows[-1]['note']}")
    if lines := [line for line in log.splitlines() if ": error: " in line]:
        return UserError(lines[-1].partition(": error: ")[2])
    return Failed(f"{who}: failed: {reason}")


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
