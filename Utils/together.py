"""Several processes of one script at once on one device, against one process alone.

    python -m Utils.together NAME [--n 2] [flags of the scripts]

All of them begin their timed steps at the same moment, when the last has compiled and warmed up;
from then until the first has ended, all train, and what they get done in that time is what counts.
Their rows go to files of scratch: a run beside others of its kind is no row for results.csv.
"""

import os
import secrets
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
import pandas as pd
from tabulate import tabulate

from Utils import ladder, results, run, settings, suite, summary, variants
from Utils.errors import Unsupported, UserError, one_line
from Utils.settings import CACHE

VERDICTS = {
    "faster": "it pays",
    "slower": "it costs",
    "no detectable difference": "whether it pays cannot be told",
    summary.NO_INTERVAL: "one round cannot tell whether it pays; ROUNDS=3 may",
}


class Failed(Exception):
    """A process ended without a timing: the message names it. Exit code 1."""


# One process ------------------------------------------------------------------------------------


class RunAmongOthers(run.Run):
    """A Run that goes on from its warm-up when the others have come as far, and notes the moment.

    go: threading.Event, which says so.
    """

    def __init__(self, go, args, model, optimizer):
        super().__init__(args, model, optimizer)
        self.go, self.folder = go, args.results_file.parent

    def steps(self, batches):
        for step, batch in enumerate(super().steps(batches)):
            if step == self.args.warmup:  # which began as long ago as its batch has taken
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
    """What each of the processes runs; its command line: NAME and the flags of the script."""
    name, *flags = sys.argv[1:]
    go = threading.Event()
    threading.Thread(target=_listen, args=(go,), daemon=True).start()
    run.execute(variants.find(name), flags, partial(RunAmongOthers, go))


def _listen(go):
    """Standard input has a line when all are ready, and ends where who started us has ended."""
    if os.read(0, 1):
        go.set()
        os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # a loader's workers too


@dataclass
class Part:
    """What a process has done. began: seconds of the clock that all processes here share; step_s:
    of the timed steps; tokens: of a step; record: of `run`."""

    began: float
    step_s: np.ndarray
    tokens: int
    peak_mib: float
    note: str
    record: dict


def tokens_per_second(parts):
    """Of each Part, in the time in which all of them train: an array. Of a step that the end of
    this time cuts, the share before it counts."""
    boundaries = [part.began + np.cumsum([0.0, *part.step_s]) for part in parts]
    span = np.array([max(own[0] for own in boundaries), min(own[-1] for own in boundaries)])
    steps = [np.diff(np.interp(span, own, np.arange(len(own)))).item() for own in boundaries]
    return np.array([part.tokens for part in parts]) * steps / np.diff(span)


# Several processes ------------------------------------------------------------------------------


def at_once(technique, n, flags, minutes, threads=None):
    """Runs n processes of a technique at once: a list of Part.

    flags: of its script. minutes: after which all are ended. threads: of each, or None for as many
    as ever. Raises UserError, Unsupported or Failed, which name the process that could not run.
    """
    how = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    end, waiting = time.monotonic() + 60 * minutes, True
    CACHE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="together-", dir=CACHE) as scratch,
        ExitStack() as stack,
    ):
        folders = [Path(scratch) / str(i + 1) for i in range(n)]
        processes = [stack.enter_context(_started(technique, f, flags, how)) for f in folders]
        while True:
            codes = [process.poll() for process in processes]
            bad = [i for i, code in enumerate(codes) if code or (waiting and code == 0)]
            if not bad and None in codes and time.monotonic() > end:
                bad = [codes.index(None)]
            if bad:
                who = f"{technique.name}, process {bad[0] + 1} of {n}"
                raise _failure(who, folders[bad[0]], suite.why_ended(codes[bad[0]], minutes))
            if None not in codes:
                return [_part(folder) for folder in folders]
            if waiting and all((folder / "ready").exists() for folder in folders):
                waiting = False
                for process in processes:
                    os.write(process.stdin.fileno(), b"\n")
            time.sleep(0.02)


@contextmanager
def _started(technique, folder, flags, how):
    """A process of a technique, which is ended with all that it has started."""
    folder.mkdir()
    command = [sys.executable, "-c", "from Utils import together; together.take_part()"]
    command += [technique.name, *flags, f"--results-file={folder / 'results.csv'}"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            command,
            env=settings.environment(**how),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.wait()


def _part(folder):
    rows = results.check(folder / "results.csv")
    (record,) = results.records(folder / "results.csv", {row["run_id"] for row in rows}).values()
    first = rows[0]
    return Part(
        began=float((folder / "began").read_text()),
        step_s=np.array([float(r["step_ms"]) for r in rows if r["phase"] == "timed"]) / 1e3,
        tokens=int(first["batch_size"]) * int(first["seq_len"]),
        peak_mib=float(first["peak_memory_mib"]),
        note=first["note"],
        record=record,
    )


def _failure(who, folder, reason):
    """What to raise for a process without timing. reason: for one that left no word itself."""
    rows, log = results.check(folder / "results.csv"), (folder / "log").read_text()
    if rows and rows[-1]["status"] != "ok":
        kind = Unsupported if rows[-1]["status"] == "unsupported" else Failed
        return kind(f"{who}: {rows[-1]['status'].replace('_', ' ')}: {rows[-1]['note']}")
    lines = [line for line in log.splitlines() if ": error: " in line]
    if lines:
        return UserError(lines[-1].partition(": error: ")[2])
    return Failed(f"{who}: failed: {reason}")


# What is found ----------------------------------------------------------------------------------


def measure(technique, args):
    """Rounds of one process alone and of args.n at once, every other round backwards: two lists,
    with a list of Part for each round. One alone has the threads that it would have anyway, of
    several each its share of them."""
    alone, several, share = [], [], None
    for place, r in enumerate(range(args.round, args.round + args.rounds)):
        for n in (1, args.n) if place % 2 == 0 else (args.n, 1):
            number = len(alone) + len(several) + 1
            what = "one alone" if n == 1 else f"{n} at once"
            print(f"[{number}/{2 * args.rounds}] round {r}, {what}", file=sys.stderr, flush=True)
            if n > 1:
                share = max(1, alone[0][0].record["threads"] // n)
            found = at_once(technique, n, _flags(args, r), args.timeout, share if n > 1 else None)
            (alone if n == 1 else several).append(found)
    return alone, several


def _flags(args, r):
    """The command line of the processes in round r."""
    values = vars(args) | {"rounds": 1, "round": r, "seed": args.seed + r}
    names = sorted(values.keys() - {"name", "n", "timeout", "results_file"})
    return settings.as_flags({name: values[name] for name in names})


def compare(alone, several):
    """How many times as many tokens a second: speedup, its interval and a verdict, as
    `summary.as_ratio` has them, of the rounds' log ratios."""
    rates = [[tokens_per_second(parts).sum() for parts in rounds] for rounds in (several, alone)]
    return summary.as_ratio(*summary.interval(pd.Series(np.log(rates[0]) - np.log(rates[1]))))


def report(technique, alone, several):
    """What was found, in a table and a sentence: a string."""
    record, n, rounds = several[0][0].record, len(several[0]), len(several)
    device, shape = record["device"], record["settings"]
    rows = []
    for count, found in ((1, alone), (n, several)):
        rates = np.median([tokens_per_second(parts) for parts in found], axis=0)
        peaks = np.median([[part.peak_mib for part in parts] for parts in found], axis=0)
        each = [" + ".join(f"{x:,.0f}" for x in values) for values in (rates, peaks)]
        share = f" ({peaks.sum() / device['memory_mib']:.0%} of the device's)"
        sums = f"{rates.sum():,.0f}", f"{peaks.sum():,.0f}{share}"
        rows.append((count, found[0][0].record["threads"], each[0], sums[0], each[1], sums[1]))
    headers = ("at once", "threads each", "tokens/s", "in sum", "peak memory (MiB)", "in sum")
    align = ("right",) * len(headers)
    ratio = compare(alone, several)
    interval = f" ({ratio['speedup_low']:.2f}-{ratio['speedup_high']:.2f})" if rounds > 1 else ""
    lines = [
        f"{technique.name} on {device['name']}, torch {record['versions']['torch']}: "
        f"{shape['model']}, {shape['batch_size']}x{shape['seq_len']} tokens a step, "
        f"{shape['dataset']}, {rounds} round{'s' * (rounds > 1)}",
        "",
        tabulate(rows, headers, "github", colalign=align, disable_numparse=True),
        "",
        f"{n} at once train {ratio['speedup']:.2f}x{interval} as many tokens a second as one "
        f"alone: {VERDICTS[ratio['verdict']]}.",
    ]
    for r, (part,) in enumerate(alone):
        if summary.TAINTED in part.note:
            why = part.note.partition(summary.TAINTED)[2]
            lines.append(f"One alone was tainted in its round {r + 1} of {rounds}: {why}.")
    return "\n".join(lines)


def main(argv=None):
    """Runs several processes of a technique at once and one alone, in rounds, and says what that
    brings. Returns the exit code: 0, or 1 where a process failed or did not fit into memory, or 2
    where the settings are not possible."""
    parser = settings.Parser("together", __doc__)
    settings.add_settings(parser)
    add = parser.add_argument
    add("name", nargs="?", default="", help="a technique")
    add("--n", type=settings.at_least(2), default=2, help="processes at once")
    add("--timeout", type=settings.at_least(1), default=60, help="minutes after which they end")
    args = parser.parse_args(argv)
    if not args.name:
        raise UserError(f"T=NAME says what: one of {', '.join(ladder.techniques())}")
    if not args.warmup:
        raise UserError("--warmup 0: all begin together when the last has warmed up; 1 is enough")
    technique = variants.find(args.name)
    os.environ["SUITE"] = f"together-{secrets.token_hex(4)}"  # a batch found is found once
    try:
        print(report(technique, *measure(technique, args)))
    except (Unsupported, Failed) as error:
        print(f"together: {error}", file=sys.stderr)
        return int(isinstance(error, Failed))
    return 0


if __name__ == "__main__":
    with one_line("together"):
        sys.exit(main())
