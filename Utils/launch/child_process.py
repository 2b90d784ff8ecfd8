"""Run one process of this project, and explain its end."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from Utils.base import paths
from Utils.results import rows_file


def python(command, suite, minutes=None):
    """Run Python with the project on its path. Return the exit code; None after so many minutes."""
    return ended([sys.executable, *command], paths.environment(SUITE=suite), minutes)


def ended(command, environment, minutes=None):
    """Run a command. Return its exit code; None after so many minutes."""
    process = subprocess.Popen(command, env=environment)
    end = time.monotonic() + 60 * minutes if minutes else None
    while True:
        try:
            return process.wait(end and max(0, end - time.monotonic()))
        except KeyboardInterrupt:
            pass  # the terminal interrupts the child as well: let it end first
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None


def trial(command, flags, **variables):
    """Run a script whose rows are kept nowhere. Return them and its CompletedProcess.

    command, flags: Python's arguments. variables: of its environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, environment = Path(folder) / "results.csv", paths.environment(**variables)
        command = [sys.executable, *command, *flags, f"--results-file={file}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return rows_file.text_rows(file), done


def why_ended(code, minutes=None):
    """Explain the end of a process without a row. code: None after so many minutes."""
    if code is None:
        return f"ended after the time-out of {minutes} minutes"
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{hint}"
    return f"ended with exit code {code} before it could say why"
