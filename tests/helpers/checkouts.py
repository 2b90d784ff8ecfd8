"""Repositories in other folders, and a copy of the tracked files as they are here."""

import shutil
import subprocess

from Utils.base import paths


def copy(folder):
    """Copy all tracked files that are here to a folder."""
    for name in paths.git("ls-files", "-z").split("\0"):
        if (paths.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.ROOT / name, folder / name)


def git(folder, *words):
    """Return what git prints in a folder."""
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", *author, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder):
    """Make a folder a repository with one commit, on the branch main, of all its files."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
