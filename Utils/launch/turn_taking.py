"""Runs that take turns: several live processes, one of which trains at a time.

Neighbours on a shared machine come and go within seconds. Scripts that run one after the other meet
different ones; scripts that alternate every second or so meet the same.
"""

import json
import math
import os
import re
import secrets
import socket
import tempfile
import time
from contextlib import suppress

from Utils.base import child
from Utils.base.progress_display import ProgressDisplay
from Utils.harness import turn_pipe

MOST_PROCESSES = 4  # processes at once
TURN_S = 1.0  # duration of a turn
FEWEST_TURNS = 4  # in a run with enough steps: with fewer, its partners meet another machine
SHORTEST_TURN = 5  # steps in a turn, of which the first is warm-up
# Memory that must be free for one more process: a share of the largest peak, and a constant.
SPARE = 1.25
SPARE_MIB = 512
TICK_S = 0.5  # between two drawings of the progress bar
LOG_PREFIX = r"^\S*[VIWEC]\d{4} [\d:.]+ \d+ "  # time and process of a line of torch's log
# Exit codes after which no other script starts: bad settings, Ctrl-C.
FINAL_CODES = (2, child.INTERRUPTED)


class Member:
    """One process that takes turns.

    facts: the numbers of its last report; None once it has ended.
    code: its exit code; None after the time-out.
    """

    def __init__(self, technique, flags, suite, token, deadline):
        self.technique = technique
        self.started = time.monotonic()
        self.facts = {}
        self.code = None
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, `close` does it

        self.turns, end = socket.socketpair()
        self.turns.settimeout(TICK_S)
        turn = json.dumps([end.fileno(), os.getpid(), token, deadline])
        with end:
            self.process = child.start(
                [technique.python, *technique.command, *flags],
                pass_fds=[end.fileno()],
                env=technique.environment(SUITE_ID=suite, **{turn_pipe.VARIABLE: turn}),
                stdout=self.log,
                stderr=self.log,
            )

    def train(self, steps, most):
        """Let the process train for a number of steps. most: steps until its end."""
        with suppress(ConnectionError):  # it was killed
            self.turns.sendall(f"{steps} {most}\n".encode())

    def listen(self, end, tick):
        """Wait until the process reports or ends.

        end: time at which it is killed.
        tick: called every TICK_S.
        """
        line = None
        while line is None and time.monotonic() < end:
            try:
                line = self.turns.recv(1000)
            except OSError:  # the time is over, or it was killed
                tick()
                if self.process.poll() is not None:  # what it has left may hold its end
                    line = b""

        self.facts = json.loads(line) if line else None
        if line is None:
            self.process.kill()
        elif not line:
            self.code = child.end(self.process, None)

    def close(self):
        """End the process if it is live, and what it has started. Return what it printed."""
        self.turns.close()
        child.end(self.process)
        with self.log:
            self.log.seek(0)
            return self.log.read().rstrip()


def run(techniques, flags, suite, minutes, progress):
    """Run the first of some techniques in turns with as many of the next as memory allows.

    Return ({name: exit code}, whether memory was too small for another). A code is None after the
    time-out. After Ctrl-C, which leaves no rows, it is ({name of the first: INTERRUPTED}, False).

    flags: those of every script.
    suite: its id.
    minutes: per process, until all are killed.
    progress: a SuiteProgress, whose Schedule may limit the time.
    """
    schedule = progress.schedule
    token = secrets.token_hex(4)
    members = []
    live = []
    memory_is_full = False
    try:
        # Each process starts once the one before it has warmed up, if memory allows.
        for technique in techniques:
            if live:
                largest_mib = max(member.facts["peak_mib"] for member in live)
                memory_is_full = live[-1].facts["free_mib"] <= SPARE * largest_mib + SPARE_MIB
            if memory_is_full or len(live) == MOST_PROCESSES:
                break

            progress.show(f"{technique.label} starts", "compile" in technique.needs)
            member = Member(technique, flags, suite, token, schedule.deadline)
            members.append(member)
            member.listen(time.monotonic() + 60 * minutes, progress.refresh)
            if member.facts is not None:
                live.append(member)
                start_s = time.monotonic() - member.started
                schedule.costs.add(technique.name, start_s, member.facts)
            elif member.code in FINAL_CODES:
                break

        if live:
            end = time.monotonic() + 60 * minutes * len(members)
            _take_turns(live, schedule.steps(), end, progress)
    except KeyboardInterrupt:
        return {techniques[0].name: child.INTERRUPTED}, False  # the members' output is not shown
    finally:
        outputs = [(member.close(), member.code) for member in members]

    for output, code in outputs:
        progress.say_once(output, code == 0)
    return {member.technique.name: member.code for member in members}, memory_is_full


def _take_turns(live, most, end, progress):
    """Let the processes train one after the other, every other time in reverse order.

    most: longest run of a process, in steps from now on.
    """
    left = {member: min(most, member.facts["left"]) for member in live}
    order = list(live)
    total = sum(left.values())
    turns = 1
    if len(live) > 1:
        longest = max(left.values())
        pace_s = max(member.facts["pace_s"] for member in live)
        turns = _number_of_turns(longest, pace_s)
        names = ", ".join(member.technique.label for member in live)
        progress.show(f"{names} run alternately, {math.ceil(longest / turns)} steps each")

    while order:
        longest = max(left[member] for member in order)
        steps = math.ceil(longest / max(1, turns))
        turns -= 1
        for member in order:
            done = total - sum(left.values())
            progress.train(member.technique.label, done, total)
            member.train(steps, left[member])
            member.listen(end, progress.refresh)
            left[member] = member.facts["left"] if member.facts is not None else 0
        order = [member for member in reversed(order) if member.facts is not None]


def _number_of_turns(steps, pace_s):
    """Return in how many turns a run takes its steps: an even number, or 1."""
    turns = max(FEWEST_TURNS, round(steps * pace_s / TURN_S))
    return min(turns, steps // SHORTEST_TURN) // 2 * 2 or 1


class SuiteProgress(ProgressDisplay):
    """Display of the running scripts and the time left.

    schedule: a Schedule, which knows what is left to run.
    ended: number of runs that have ended.
    """

    def __init__(self, schedule):
        super().__init__(form="{desc} {bar} [{elapsed}]")
        self.schedule = schedule
        self.ended = 0
        self.round = 0
        self.printed = set()

    def next(self, r, names):
        """Begin a group of runs of round r."""
        self.round = r
        self.group_began = time.monotonic()
        self.total = None
        if self.disable:
            number = f"[{self.ended + 1}/{self.ended + self.schedule.runs_left()}]"
            left = self._time_left() if self.ended else ""
            self.say(f"\n{number} round {r}{left}: {names}")

    def show(self, text, compiles=False):
        """Show what the running scripts do."""
        self.say_without_bar(f"  {text}")
        remark = "; compiling can take minutes" if compiles else ""
        self.set_description_str(f"round {self.round}: {text}{remark}")

    def train(self, name, done, total):
        """Show the script that trains. done, total: steps of all members of its group."""
        left = self._time_left() if done else ""
        self.n = done
        self.total = total
        self.set_description_str(f"round {self.round}: {name}, step {done}/{total}{left}")

    def _time_left(self):
        """Return the time until all have run, in words."""
        seconds = self.schedule.seconds_left(time.monotonic() - self.group_began)
        minutes = max(0, math.ceil(seconds / 60))
        if self.schedule.minutes:
            return f", {minutes} min left at most"
        return f", about {minutes} min left"

    def say_once(self, text, by_line=True):
        """Print those lines of a text that no run of this suite has printed before.

        by_line: False prints the text as one line, if it is new.
        """
        lines = text.splitlines() if by_line else [text]
        keys = [re.sub(LOG_PREFIX, "", line) for line in lines]
        new = [line for line, key in zip(lines, keys, strict=True) if key not in self.printed]
        self.printed.update(keys)
        if any(new):
            self.say("\n".join(new))
