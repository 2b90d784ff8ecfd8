"""Runs that take turns: several live processes, one of which trains at a time.

Neighbours on a shared machine come and go within seconds. Scripts that run one after the other meet
different ones; scripts that alternate every second or so meet the same.
"""

import json
import math
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from tqdm import tqdm

from Utils.analysis.text_tables import WIDEST
from Utils.harness import turn_pipe

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
    after the time-out."""

    def __init__(self, technique, flags, suite, token, **variables):
        self.technique = technique
        self.facts = {}
        self.code = None
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115, `close` does it
        self.turns, end = socket.socketpair()
        self.turns.settimeout(TICK_S)
        variables |= turn_pipe.environment(end.fileno(), end.fileno(), token)
        environment = technique.environment(SUITE=suite, **variables)
        command = [technique.python, *technique.command, *flags]
        options = {"env": environment, "stdout": self.log, "stderr": self.log}
        with end:
            self.process = subprocess.Popen(command, pass_fds=[end.fileno()], **options)

    def fileno(self):
        return self.turns.fileno()

    def train(self, steps):
        with suppress(ConnectionError):  # it was killed
            self.turns.sendall(f"{steps}\n".encode())

    def listen(self, end, tick=lambda: None):
        """Wait until the process reports or ends. end: time at which it is killed. tick: called
        every TICK_S."""
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


class SuiteProgress:
    """What runs, and how long it still takes. left: runs.

    Where stderr is no terminal, what runs is printed in lines.
    """

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
