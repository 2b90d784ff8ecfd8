"""Files that appear complete or not at all."""

import contextlib
import errno
import json
import os
import signal
import tempfile
import threading
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError, naming

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def atomic_write(path):
    """Yield a binary file that replaces `path` when it is complete and on the disk.

    A killed process leaves the old file or the new one. Raises UserError.
    """
    remedy = "set CACHE_DIR to another folder" if path.is_relative_to(paths.CACHE) else ""
    with naming(path, remedy), contextlib.ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp", delete=False) as file:
            unfinished = Path(file.name)
            stack.callback(unfinished.unlink, missing_ok=True)
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.chmod(0o644)
        unfinished.replace(path)


def atomic_append(file, text):
    """Append to an open file, given by its descriptor: all of it or, with an OSError, nothing."""
    size = os.fstat(file).st_size
    data = text.encode(errors="backslashreplace")
    try:
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


@contextlib.contextmanager
def uninterrupted(signals=SIGNALS):
    """Delay signals until the end of the block. Only the main thread can, and is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    caught = []
    handlers = {}
    for signum in signals:
        handlers[signum] = signal.signal(signum, lambda signum, frame: caught.append(signum))
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler or signal.SIG_DFL)  # None: a handler of C
        for signum in caught:
            signal.raise_signal(signum)


def write(path, text):
    """Write a text file and its folder. Raises UserError."""
    with atomic_write(path) as file:
        file.write(text.encode())


def write_json(path, values):
    write(path, json.dumps(values, indent=1) + "\n")


def read_json(path):
    """Return the values of a JSON file, or None without one. Raises UserError if damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
