"""The checked-out commit of the project."""

import subprocess

from Utils.base import paths


def commit():
    """Return the short hash, with -dirty where the code is modified; "" without git."""
    # Runs write these.
    results = [f":(exclude){path}" for path in ("*.csv", "*.jsonl", "results")]
    short = _git("rev-parse", "--short=7", "HEAD")
    return short and short + "-dirty" * bool(_git("status", "--porcelain", "--", ".", *results))


def head():
    """Return the full hash, or "" without git."""
    return _git("rev-parse", "HEAD")


def _git(*command):
    command = ["git", "-C", str(paths.ROOT), *command]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
