"""Processes of Python, which pay for their imports: forked.py has those that need not."""

import subprocess
import sys

from Utils.base import paths


def run(*command, cwd=paths.ROOT, env=None, check=False):
    """Run a command. Return its CompletedProcess."""
    command = [*map(str, command)]
    return subprocess.run(command, cwd=cwd, env=env, check=check, capture_output=True, text=True)


def python(*words, cwd=paths.ROOT, **variables):
    """Run Python with these words. Return its CompletedProcess.

    variables: of its environment, beside this process's.
    """
    return run(sys.executable, *words, cwd=cwd, env=paths.environment(**variables))


def command(*words, **variables):
    """Run a command of the project, which has to go well. Return its CompletedProcess."""
    done = python(*words, **variables)
    assert done.returncode == 0, done.stderr
    return done
