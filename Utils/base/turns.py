"""Runs that take turns: processes of one launcher that are timed in alternation.

The variable TURN holds four fields: the ends of two pipes, the launcher's process id, and a token
that the run_ids of all these runs end with.
"""

import json
import os
from dataclasses import dataclass

import psutil

TOKEN = 4  # hexadecimal digits at the end of a run_id


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
        return {child.pid for child in psutil.Process(self.launcher).children()} - {os.getpid()}


def environment(reads, writes, token):
    """Return the variable for a run that reads and writes these pipe ends, a dict."""
    return {"TURN": f"{reads},{writes},{os.getpid()},{token}"}


def taken():
    """Return the Turn of this process, or None where it runs by itself."""
    reads, writes, launcher, token = (os.environ.get("TURN") or "0,0,0,").split(",")
    if int(launcher) != os.getppid():  # none, or that of the process that started this one
        return None
    for end in (reads, writes):
        os.set_inheritable(int(end), False)  # else a child would keep the pipe open
    return Turn(int(reads), int(writes), int(launcher), token)
