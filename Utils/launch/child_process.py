"""Run one process of this project, and explain its end."""

import signal
import subprocess
import sys

from Utils.base import paths


def python(command, suite):
    """Run Python with the project on its path. Return the exit code."""
    process = subprocess.Popen([sys.executable, *command], env=paths.environment(SUITE=suite))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # the terminal interrupts the child as well: let it end first


def why_ended(code, minutes=None):
    """Explain the end of a process without a row. code: None after so many minutes."""
    if code is None:
        return f"ended after the time-out of {minutes} minutes"
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} before it could say why"
