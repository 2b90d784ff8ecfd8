"""Runs that take turns: processes of one launcher that are timed in alternation."""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass

import psutil

# The ends of two pipes, the launcher's process id, and a token that all their run_ids end with.
VARIABLE = "TAKES_TURNS"
VALUE = re.compile(r"(\d+),(\d+),(\d+),([0-9a-f]+)")


@dataclass(frozen=True)
class Turn:
    """A run's side of the two pipes to its launcher."""

    reads: int
    writes: int
    launcher: int
    token: str

    def wait(self, **facts):
        """Report facts, a dict of numbers, and wait for the next turn. Return its steps.

        Raises KeyboardInterrupt where the launcher has ended.
        """
        try:
            os.write(self.writes, json.dumps(facts).encode() + b"\n")
            answer = os.read(self.reads, 100)
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise KeyboardInterrupt
        return int(answer)

    def partners(self):
        """Return the process ids of the other runs that take turns."""
        with suppress(psutil.NoSuchProcess):  # the launcher has ended
            return {child.pid for child in psutil.Process(self.launcher).children()} - {os.getpid()}
        return set()


def environment(reads, writes, token):
    """Return the variable for a run that reads and writes these pipe ends, a dict."""
    return {VARIABLE: f"{reads},{writes},{os.getpid()},{token}"}


def taken():
    """Return the Turn of this process, or None where it runs by itself."""
    fields = VALUE.fullmatch(os.environ.get(VARIABLE, ""))
    if not fields or int(fields[3]) != os.getppid():  # that of the process that started this one
        return None
    reads, writes, launcher = map(int, fields.groups()[:3])
    for end in (reads, writes):
        os.set_inheritable(end, False)  # else a child would keep the pipe open
    return Turn(reads, writes, launcher, fields[4])
