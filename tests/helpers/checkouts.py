"""A copy of the tracked files, as they are here, in another folder."""

import shutil
import subprocess

from Utils.base import paths


def copy(folder):
    """Copy all tracked files that are here to a folder."""
    for name in paths.git("ls-files", "-z").split("\0"):
        if (paths.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.ROOT / name, folder / name)


def commit(folder):
    """Make a folder a repository with one commit of all its files."""
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "copy"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
