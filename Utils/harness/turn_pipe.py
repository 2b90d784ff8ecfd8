"""Runs that take turns: processes of one launcher that are timed in alternation."""

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass

import psutil

# Number of the protocol of a launcher and its runs: reports, answers, flags, identities. Increment
# it with each change of these, because `make pair` runs scripts of other revisions.
PROTOCOL = 2
VARIABLE = "TAKES_TURNS"  # the fields of a Turn, as JSON


@dataclass(frozen=True)
class Turn:
    """A run's end of the socket to its launcher."""

    end: int  # file descriptor
    launcher: int  # process id
    token: str  # end of the run_ids of all runs that take turns
    deadline: float = math.inf  # time.monotonic() after which a run ends after a step

    def wait(self, **report: float) -> tuple[int, int]:
        """Report numbers to the launcher, and wait for the next turn.

        Return its steps, and how many steps the run may have from now on.
        Raises KeyboardInterrupt if the launcher has ended.
        """
        try:
            os.write(self.end, json.dumps(report).encode() + b"\n")
            answer = os.read(self.end, 100)
        except ConnectionError:
            answer = b""
        if not answer:
            raise KeyboardInterrupt
        steps, most = map(int, answer.split())
        return steps, most

    def partners(self) -> set[int]:
        """Return the process ids of the other runs that take turns."""
        with suppress(psutil.NoSuchProcess):  # the launcher has ended
            return {child.pid for child in psutil.Process(self.launcher).children()} - {os.getpid()}
        return set()


def current_turn() -> Turn | None:
    """Return the Turn of this process, or None if it runs by itself."""
    if not os.environ.get(VARIABLE):
        return None
    turn = Turn(*json.loads(os.environ[VARIABLE]))
    if not psutil.pid_exists(turn.launcher):
        raise KeyboardInterrupt
    if turn.launcher != os.getppid():  # the Turn is that of this process's parent
        return None

    os.set_inheritable(turn.end, False)  # otherwise a child would keep it open
    return turn
