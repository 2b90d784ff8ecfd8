"""Files that appear whole or not at all, and what it means when they cannot."""

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path

from Utils.base.errors import UserError


@contextlib.contextmanager
def written_whole(path):
    """Yield a binary file that takes its name once it is complete and on the disk.

    It is written beside its place under another name, flushed, and renamed: a process that is
    killed at any moment leaves the old file or the new one. Raises UserError where the disk is full
    or the folder cannot be written to.
    """
    with writing(path), contextlib.ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            stack.callback(temporary.unlink, missing_ok=True)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        _flush_folder(path.parent)


def write_json(path, values):
    with written_whole(path) as file:
        file.write((json.dumps(values, indent=1) + "\n").encode())


def read_json(path):
    """Return the values of a JSON file, or None without one. Raises UserError if damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


@contextlib.contextmanager
def writing(path):
    """Raise a UserError that names the path in place of an OSError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = "the disk is full; free some of it" if full else error.strerror or error
        raise UserError(f"{path}: {problem}") from None


def remove_leftovers(folder):
    """Remove what a killed process was writing. Only the process that owns the folder may."""
    for path in folder.glob(".tmp*"):
        path.unlink(missing_ok=True)


def _flush_folder(folder):
    """Make a rename in that folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
