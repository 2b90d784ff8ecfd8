"""Files that appear complete or not at all."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import tomllib
from pathlib import Path

from Utils.base import paths, schema
from Utils.base.errors import UserError, naming, say

MARK = "gpt2-training-optimizations, which replaces this file"  # near the start of all outputs
UNFINISHED = ".unfinished-"  # start of the name of a file that is being written
LOOK = {"states": [[int]], "sha256": str}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_marked(path):
    """Return whether a file has MARK near its start, as our outputs have."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(4096)


def claim(path, is_ours=is_marked):
    """Raise UserError if a path is that of a file or folder that this program did not write.

    Every output is claimed before it is written. A missing path is free, and so is an empty file or
    folder, and a device such as /dev/stdout.

    is_ours: function of the path that recognizes an earlier output by its content.
    """
    with naming(path):
        if path.is_dir():
            is_free = not any(path.iterdir())
        else:
            is_free = not path.is_file() or not path.stat().st_size
        if not is_free and not is_ours(path):
            problem = f"{path}: exists and was not written by this program"
            raise UserError(problem, "move it or choose another name")


@contextlib.contextmanager
def atomic_write(path):
    """Yield a binary file that replaces `path` when it is complete and on the disk.

    A killed process leaves the old file or the new one. A device is written as it is. Raises
    UserError.
    """
    remedy = "set CACHE_DIR to another folder" if path.is_relative_to(paths.CACHE) else ""
    with naming(path, remedy):
        if path.is_relative_to("/dev"):
            with path.open("wb") as file:
                yield file
            return

        path = path.resolve()  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path.parent) as folder:
            with open(folder / path.name, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            (folder / path.name).replace(path)


@contextlib.contextmanager
def new_folder(parent):
    """Yield a new folder, for files that are renamed once they are complete, and remove it.

    What killed processes have left of such folders, whose locks are free, is removed first. Raises
    OSError.
    """
    with contextlib.ExitStack() as stack:
        with _lock(parent):  # so that no other process removes it before it is locked
            for remains in parent.glob(f"{UNFINISHED}*"):
                with contextlib.suppress(OSError), _lock(remains, fcntl.LOCK_NB):
                    shutil.rmtree(remains) if remains.is_dir() else remains.unlink()
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=UNFINISHED))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_lock(folder))
        yield folder


@contextlib.contextmanager
def _lock(path, no_wait=0):
    """Lock a file or folder. no_wait: LOCK_NB raises OSError if it is locked or has no locks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(() if no_wait else OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | no_wait)
        yield
    finally:
        os.close(descriptor)


def atomic_append(file, data):
    """Append to an open file, given by its descriptor: all bytes or, with an OSError, none."""
    size = os.fstat(file).st_size
    try:
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


@contextlib.contextmanager
def locked(path, held=""):
    """Open the file for appending, creating it if needed, and lock out other runs.

    Yields the file's descriptor.

    held: message of the UserError if another process has the lock; without a message, wait for it.
    """
    operation = fcntl.LOCK_EX | fcntl.LOCK_NB if held else fcntl.LOCK_EX
    while True:
        with naming(path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            try:
                fcntl.flock(file, operation)
            except BlockingIOError:
                raise UserError(held) from None
            except OSError as error:  # some network file systems have no locks
                raise UserError(f"{path}: cannot be locked: {error.strerror}") from None

            # `make reset` may have moved the file meanwhile: then lock the new one.
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                yield descriptor
                return


@contextlib.contextmanager
def uninterrupted(signals=SIGNALS):
    """Delay signals until the end of the block. Only the main thread can, and is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    caught = []
    handlers = {s: signal.signal(s, lambda signum, frame: caught.append(signum)) for s in signals}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler or signal.SIG_DFL)  # None: a handler of C
        for signum in caught:
            signal.raise_signal(signum)


def tables_beside(module, name):
    """Return the tables of a TOML file in the folder of a module. module: its __file__."""
    return tomllib.loads(Path(module).with_name(name).read_text())


def write(path, text):
    """Write a text file and its folder. Raises UserError."""
    with atomic_write(path) as file:
        file.write(text.encode())


def write_json(path, values):
    write(path, json.dumps(values, indent=1) + "\n")


def read_json(path, shape, remedy=""):
    """Return the values of a JSON file, None without one.

    Raises UserError if they do not have a shape of `schema.check`. remedy: the end of its line.
    """
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error})", remedy) from None
    try:
        schema.check(values, shape)
    except ValueError as error:
        raise UserError(f"{path}: {error}", remedy) from None
    return values


def read_cache(path, shape, remedy="rebuilding it"):
    """Return what `read_json` does, None with a line on stderr if the file is damaged."""
    try:
        return read_json(path, shape, remedy)
    except UserError as error:
        say(error, sys.stderr)


def read_described(path, shape, *data):
    """Return the values of a JSON file that describes files of data, None if any has changed.

    Then all are made anew, and a line on stderr says so. They are hashed again if a size or time is
    not that of the last look.
    """
    values = read_cache(path, shape | {"looks?": LOOK})
    if values is None:
        return None

    earlier = values.pop("looks", {"states": None, "sha256": values.get("sha256")})
    digest = hashlib.sha256()
    with naming(path):
        present = [file for file in data if file.is_file()]
        states = [[file.stat().st_size, file.stat().st_mtime_ns] for file in present]
        if states == earlier["states"]:
            return values
        for file in present:
            with file.open("rb") as opened:
                hashlib.file_digest(opened, lambda: digest)

    look = {"states": states, "sha256": digest.hexdigest()}
    if len(present) < len(data) or earlier["sha256"] not in (None, look["sha256"]):
        say(f"{path.with_suffix('')}: damaged; rebuilding it", sys.stderr)
        return None
    with contextlib.suppress(UserError):  # then they are hashed again
        write_json(path, values | {"looks": look})
    return values
