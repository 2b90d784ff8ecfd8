"""Repositories in other folders, and a copy of the tracked files as they are here."""

import os
import shutil
import sys

from tests.helpers.processes import run
from Utils.base import paths

TINY = ("MODEL=gpt2-tiny", "STEPS=6", "WARMUP=2", "BATCH_SIZE=2", "SEQ_LEN=16")  # for make


def copy(folder, *names):
    """Copy all tracked files that are here, or those of these names and folders, to a folder."""
    for name in paths.git("ls-files", "-z", *names).split("\0"):
        if (paths.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.ROOT / name, folder / name)


def clone(folder):
    """Clone this repository, with its history, and commit its tracked files as they are here."""
    git(folder, "clone", "-q", paths.ROOT, ".")
    copy(folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "as it is here")


def git(folder, *words):
    """Return what git prints in a folder."""
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return run("git", *author, *words, cwd=folder, check=True).stdout


def commit(folder):
    """Make a folder a repository with one commit, on the branch main, of all its files."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")


def state(folder):
    """All files of a folder, also git's, by the time of their last change, but git's cache."""
    return {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.name != "index"
    }


def make(folder, *words, **variables):
    """Run a target in a folder, which has to go well."""
    done = run("make", f"PYTHON={sys.executable}", *words, cwd=folder, env=os.environ | variables)
    assert done.returncode == 0, (words, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr, words
