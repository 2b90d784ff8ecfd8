"""The commit that the project is at."""

import subprocess

from Utils.base import paths


def commit():
    """Return the short hash of the commit, with -dirty where code differs from it; "" without git.

    Results and plots may differ: runs write them.
    """
    results = [f":(exclude){path}" for path in ("*.csv", "*.zip", "plots", "runs", "results")]
    found = _git("rev-parse", "--short=7", "HEAD")
    return found and found + "-dirty" * bool(_git("status", "--porcelain", "--", ".", *results))


def head():
    """Return the whole hash of the commit, or "" without git."""
    return _git("rev-parse", "HEAD")


def _git(*command):
    command = ["git", "-C", str(paths.ROOT), *command]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
