"""Findings of probes, and subprocesses for probes that may crash or hang."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from Utils.base import errors, paths

PATIENCE_S = 40  # a cold import of torch from a slow disk takes half of it


@dataclass(frozen=True)
class Finding:
    topic: str
    what: str
    state: str = "ok"  # or "note", or "fault"
    remedy: str = ""
    # The needs that this fault leaves unmet; every technique needs "run".
    blocks: tuple = ()
    # The numbers of `what`, by names that end in their unit.
    figures: dict = field(default_factory=dict)


def fault(topic, what, remedy, *blocks):
    return Finding(topic, what, "fault", remedy, blocks)


class Subprocess:
    """A Python process for what may crash, hang or be noisy."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=paths.environment(),
            start_new_session=True,  # so that it can be ended with all that it has started
        )

    def end(self, seconds=PATIENCE_S):
        """Wait for the process. Return its output, and its problem in one line or ""."""
        problem = ""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as late:
            problem = f"did not answer within {seconds} s"
            self.kill()
            try:
                out, err = self.process.communicate(timeout=5)
            except subprocess.TimeoutExpired:  # in the kernel, where no signal reaches it
                out, err = late.stdout or b"", b""
        code = self.process.returncode
        if not problem and code:
            last = err.decode(errors="replace").strip().split("\n")[-1]
            killed = code < 0 and f"killed by {signal.Signals(-code).name}"
            problem = killed or last or f"ended with exit code {code}"
        return out.decode(errors="replace"), problem

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def ask(probe, *about):
    """Return the findings of a probe, a list. An exception becomes one of them."""
    found = []
    try:
        for finding in probe(*about):
            found.append(finding)
    except Exception as error:
        what = f"check failed: {type(error).__name__}: {errors.first_line(error)}"
        found.append(Finding(probe.__name__.replace("_", " "), what, "note"))
    return found
