"""Runs that take turns: several live processes, one of which trains at a time.

Neighbours on a shared machine come and go within seconds. Scripts that run one after the other meet
different ones; scripts that alternate every second or so meet the same.
"""

import json
import os
import secrets
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from Utils.harness import turn_pipe

MOST = 4  # processes at once
TURN_S = 1.0  # of timed steps
LEAST = 4  # timed steps in a turn; the step before them is warm-up
SPARE = 1.25  # of the largest peak, that must be free for one more process
SPARE_MIB = 512
INTERRUPTED = 130
TICK_S = 0.5  # between two drawings of the line of progress
LAST = (2, INTERRUPTED)  # exit codes that hold for all: impossible settings, Ctrl-C


@dataclass
class Member:
    """One process. facts: what it reported last, None once it has ended. code: of its exit, None
    after the time-out."""

    technique: object
    process: subprocess.Popen
    reads: int
    writes: int
    log: object
    facts: dict | None = field(default_factory=dict)
    code: int | None = None

    def listen(self, end, tick):
        """Wait until the process reports or ends. end: time at which it is killed. tick: called
        every TICK_S."""
        ready = []
        left_s = end - time.monotonic()
        while not ready and left_s > 0:
            ready, _, _ = select.select([self.reads], [], [], min(TICK_S, left_s))
            tick()
            left_s = end - time.monotonic()
        line = os.read(self.reads, 1000) if ready else b""
        self.facts = json.loads(line) if line else None
        if line:
            return
        if not ready:
            self.process.kill()
        code = self.process.wait()
        self.code = code if ready else None

    def close(self):
        """Close the pipes, at which a live process ends. Return what it printed."""
        os.close(self.reads)
        os.close(self.writes)
        self.process.wait()
        self.log.seek(0)
        text = self.log.read()
        self.log.close()
        return text


def start(technique, flags, suite, token):
    """Start a script that takes turns. flags: of the script. Return the Member."""
    from_child, to_launcher = os.pipe()
    from_launcher, to_child = os.pipe()
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115, the Member closes it
    ends = from_launcher, to_launcher
    environment = technique.environment(SUITE=suite, **turn_pipe.environment(*ends, token))
    command = [technique.python, *technique.command, *flags]
    process = subprocess.Popen(command, env=environment, pass_fds=ends, stdout=log, stderr=log)
    for end in ends:
        os.close(end)
    return Member(technique, process, from_child, to_child, log)


def run(first, others, flags, suite, minutes, progress):
    """Run a technique in turns with as many others as memory allows.

    first: a technique. others: function of the names that take part, which returns the next
        technique to join or None. flags: of every script. suite: its name. minutes: until a process
        is killed, times their number. progress: SuiteProgress.
    Return ({name: exit code}, whether memory was too small for another). A code is None after the
    time-out. After Ctrl-C, which leaves no rows, it is ({name of the first: INTERRUPTED}, False).
    """
    token = secrets.token_hex(4)
    members = []
    live = []
    full = False
    try:
        technique = first
        while technique:
            progress.show(f"{technique.name} starts", "compile" in technique.needs)
            members.append(start(technique, flags, suite, token))
            members[-1].listen(time.monotonic() + 60 * minutes, progress.bar.refresh)
            if members[-1].facts is not None:
                live.append(members[-1])
            elif members[-1].code in LAST:
                break
            technique = others([member.technique.name for member in members])
            if technique and len(live) == MOST:
                break
            if technique and live and not _room(live):
                full = True
                break
        _take_turns(live, time.monotonic() + 60 * minutes * len(members), progress)
    except KeyboardInterrupt:
        return {first.name: INTERRUPTED}, False  # what members print at Ctrl-C is not shown
    finally:
        texts = [(member.close().rstrip(), member.code) for member in members]
    for text, code in texts:
        progress.say_once(text, code == 0)
    return {member.technique.name: member.code for member in members}, full


def _room(live):
    """Return whether one more process fits into memory."""
    largest = max(member.facts["peak_mib"] for member in live)
    return live[-1].facts["free_mib"] > SPARE * largest + SPARE_MIB


def _take_turns(live, end, progress):
    """Let the processes train one after the other, every other time in reverse order."""
    if not live:
        return
    pace_s = max(member.facts["pace_s"] for member in live) or TURN_S
    timed = max(LEAST, round(TURN_S / pace_s))
    if len(live) > 1:
        names = ", ".join(member.technique.name for member in live)
        progress.show(f"{names} take turns of {timed + 1} steps")
    total = _steps_left(live)
    order = list(live)
    while order:
        left = max(member.facts["left"] for member in order)
        steps = timed + 1 if len(live) > 1 and left >= 2 * timed + 2 else left
        for member in order:
            done = total - _steps_left(live)
            progress.train(member.technique.name, done, total, len(live))
            os.write(member.writes, f"{steps}\n".encode())
            member.listen(end, progress.bar.refresh)
        order = [member for member in reversed(order) if member.facts is not None]


def _steps_left(members):
    return sum(member.facts["left"] for member in members if member.facts is not None)
