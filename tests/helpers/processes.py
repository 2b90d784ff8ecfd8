"""Processes of Python, which pay for their imports: forked.py has those that need not."""

import subprocess
import sys

from Utils.base import paths


def python(*words, cwd=paths.ROOT, timeout=None, **variables):
    """Run Python with these words. Return its CompletedProcess.

    variables: of its environment, beside this process's.
    """
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        timeout=timeout,
        env=paths.environment(**variables),
        capture_output=True,
        text=True,
    )


def command(*words, **variables):
    """Run a command of the project, which has to go well. Return its CompletedProcess."""
    done = python(*words, **variables)
    assert done.returncode == 0, done.stderr
    return done
