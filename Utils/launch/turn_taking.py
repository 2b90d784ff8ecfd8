"""Runs that take turns: several live processes, one of which trains at a time.

Neighbours on a shared machine come and go within seconds. Scripts that run one after the other meet
different ones; scripts that alternate every second or so meet the same. Several processes of one
script at once have one turn, all the same: each waits after its warm-up until the others are ready.
"""

import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from Utils.analysis.text_tables import WIDEST
from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, UserError
from Utils.harness import turn_pipe
from Utils.results import rows_file

MOST = 4  # processes at once
TURN_S = 1.0  # of timed steps
LEAST = 4  # timed steps in a turn; the step before them is warm-up
SPARE = 1.25  # of the largest peak, that must be free for one more process
SPARE_MIB = 512
INTERRUPTED = 130
TICK_S = 0.5  # between two drawings of the line of progress
LOG_PREFIX = r"^\S*[VIWEC]\d{4} [\d:.]+ \d+ "  # time and process of a line of torch's log
LAST = (2, INTERRUPTED)  # exit codes that hold for all: impossible settings, Ctrl-C


class Member:
    """One process. facts: what it reported last, None once it has ended. code: of its exit, None
    after the time-out.
    """

    def __init__(self, technique, flags, suite, token, **variables):
        self.technique = technique
        self.facts = {}
        self.code = None
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115, `close` does it
        self.turns, end = socket.socketpair()
        self.turns.settimeout(TICK_S)
        turn = [end.fileno(), os.getpid(), token]
        variables |= {turn_pipe.VARIABLE: json.dumps(turn)}
        environment = technique.environment(SUITE_ID=suite, **variables)
        command = [technique.python, *technique.command, *flags]
        options = {"env": environment, "stdout": self.log, "stderr": self.log}
        with end:
            self.process = subprocess.Popen(command, pass_fds=[end.fileno()], **options)

    def train(self, steps):
        with suppress(ConnectionError):  # it was killed
            self.turns.sendall(f"{steps}\n".encode())

    def listen(self, end, tick=lambda: None):
        """Wait until the process reports or ends. end: time at which it is killed. tick: called
        every TICK_S.
        """
        line = None
        while line is None and time.monotonic() < end:
            try:
                line = self.turns.recv(1000)
            except TimeoutError:
                tick()
            except ConnectionError:  # it was killed
                line = b""
        self.facts = json.loads(line) if line else None
        if line is None:
            self.process.kill()
        elif not line:
            self.code = self.process.wait()

    def close(self):
        """Close the socket, at which a live process ends. Return what it printed."""
        self.turns.close()
        self.process.wait()
        with self.log:
            self.log.seek(0)
            return self.log.read().rstrip()


def run(techniques, flags, suite, minutes, progress):
    """Run the first of some techniques in turns with as many of the next as memory allows.

    flags: of every script. suite: its name. minutes: until a process is killed, times their number.
    progress: SuiteProgress.
    Return ({name: exit code}, whether memory was too small for another). A code is None after the
    time-out. After Ctrl-C, which leaves no rows, it is ({name of the first: INTERRUPTED}, False).
    """
    token = secrets.token_hex(4)
    members = []
    live = []
    memory_is_full = False
    try:
        for technique in techniques:
            if live:
                largest_mib = max(member.facts["peak_mib"] for member in live)
                memory_is_full = live[-1].facts["free_mib"] <= SPARE * largest_mib + SPARE_MIB
            if memory_is_full or len(live) == MOST:
                break
            progress.show(f"{technique.name} starts", "compile" in technique.needs)
            member = Member(technique, flags, suite, token)
            members.append(member)
            member.listen(time.monotonic() + 60 * minutes, progress.bar.refresh)
            if member.facts is not None:
                live.append(member)
            elif member.code in LAST:
                break
        if live:
            _take_turns(live, time.monotonic() + 60 * minutes * len(members), progress)
    except KeyboardInterrupt:
        return {techniques[0].name: INTERRUPTED}, False  # what members print at it is not shown
    finally:
        texts = [(member.close(), member.code) for member in members]
    for text, code in texts:
        progress.say_once(text, code == 0)
    return {member.technique.name: member.code for member in members}, memory_is_full


def _take_turns(live, end, progress):
    """Let the processes train one after the other, every other time in reverse order."""
    pace_s = max(member.facts["pace_s"] for member in live) or TURN_S
    timed = max(LEAST, round(TURN_S / pace_s))
    if len(live) > 1:
        names = ", ".join(member.technique.name for member in live)
        progress.show(f"{names} take turns of {timed + 1} steps")
    order = list(live)
    total = sum(member.facts["left"] for member in order)
    while order:
        left = max(member.facts["left"] for member in order)
        steps = timed + 1 if len(live) > 1 and left >= 2 * timed + 2 else left
        for member in order:
            done = total - sum(member.facts["left"] for member in live if member.facts is not None)
            progress.train(member.technique.name, done, total, len(live))
            member.train(steps)
            member.listen(end, progress.bar.refresh)
        order = [member for member in reversed(order) if member.facts is not None]


def why_ended(code, minutes=None):
    """Explain the end of a process without a row. code: None after so many minutes."""
    if code is None:
        return f"ended after the time-out of {minutes} minutes"
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} before it could say why"


class Failed(Exception):
    """A process ended without a timing: the message names it. Exit code 1."""


@dataclass
class Part:
    """Result of one of several processes at once. began: seconds of the machine's monotonic clock;
    step_s: of the timed steps; tokens: per step; record: of the run.
    """

    began: float
    step_s: np.ndarray
    tokens: int
    peak_mib: float
    record: dict

    @classmethod
    def of(cls, file, go):
        """Return that of a results file. go: when its turn, of one warm-up step, began."""
        rows = rows_file.text_rows(file)
        first = rows[0]
        timed = [row["phase"] == "timed" for row in rows]
        step_s = np.array([float(row["step_ms"]) for row in rows]) / 1e3
        began = go + step_s[timed.index(True) - 1]
        tokens = int(first["batch_size"]) * int(first["seq_len"])
        record = rows_file.read_records(file, [first["run_id"]])[first["run_id"]]
        return cls(began, step_s[timed], tokens, float(first["peak_memory_mib"]), record)


def at_once(technique, n, flags, minutes, threads=None):
    """Run n processes of a technique at once. Return a list of Part.

    flags: of its script. minutes: until all are killed. threads: of each, or None for the default.
    Raises UserError, Unsupported or Failed, naming the process that could not run.
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
            return [Part.of(file, go) for file in files]
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
    another exit code than these, or None.
    """
    for number, member in enumerate(members):
        member.listen(end)
        if member.facts is None and member.code not in codes:
            return number
    return None


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


class SuiteProgress:
    """What runs, and how long it still takes: in lines where stderr is no terminal. left: runs."""

    def __init__(self, left):
        self.left = left
        self.ended = 0
        self.round = 0
        self.started = time.monotonic()
        self.printed = set()
        size = shutil.get_terminal_size()  # tqdm draws nothing where a terminal does not say it
        shape = {"ncols": min(WIDEST, size.columns) - 1, "nrows": size.lines}
        form = "{desc} {bar} [{elapsed}]"
        self.bar = tqdm(disable=None, leave=False, bar_format=form, **shape)

    def say(self, line):
        tqdm.write(line, file=sys.stderr)

    def next(self, r, names):
        """Begin a group of runs of round r."""
        self.round = r
        self.bar.total = None
        if self.bar.disable:
            of_all = f"[{self.ended + 1}/{self.ended + self.left}]"
            left = self._time_left(0.0, 0) if self.ended else ""
            self.say(f"\n{of_all} round {r}{left}: {names}")

    def show(self, text, compiles=False):
        """Show what runs."""
        if self.bar.disable:
            self.say(f"  {text}")
        else:
            remark = "; compiling can take minutes" if compiles else ""
            self.bar.set_description_str(f"round {self.round}: {text}{remark}")

    def train(self, name, done, total, members):
        """Show the script that trains. done, total: steps of all members of its group, a number."""
        left = ""
        if done:
            step_s = (time.monotonic() - self.turns_began) / done
            left = self._time_left(step_s * (total - done), members)
        else:
            self.turns_began = time.monotonic()
        self.bar.n, self.bar.total = done, total
        self.bar.set_description_str(f"round {self.round}: {name}, step {done}/{total}{left}")

    def _time_left(self, group_s, members):
        """Return the time until all have run. group_s: until the members of a group have."""
        run_s = (time.monotonic() - self.started + group_s) / (self.ended + members)
        seconds = group_s + run_s * max(0, self.left - members)
        return f", about {math.ceil(seconds / 60)} min left"

    def say_once(self, text, by_line=True):
        """Print the lines of a text, or all of it, that no run of this suite has printed before."""
        parts = text.splitlines() if by_line else [text]
        keys = [re.sub(LOG_PREFIX, "", part) for part in parts]
        new = [part for part, key in zip(parts, keys, strict=True) if key not in self.printed]
        self.printed.update(keys)
        if any(new):
            self.say("\n".join(new))
