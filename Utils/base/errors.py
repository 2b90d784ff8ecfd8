"""Expected failures: bad input, unsupported device. Both end in one line, never in a traceback."""

import difflib
import errno
import functools
import os
import re
import sys
from contextlib import contextmanager

from Utils.base import paths
from Utils.base.text import printable

FEW = 40  # names that fit a message


class UserError(Exception):
    """An impossible request. Exit code 2, no row. message: what is wrong. remedy: what to do."""

    def __init__(self, message, remedy=""):
        # A DataLoader puts a worker's traceback in front of the message.
        self.message = printable(message.rpartition("UserError: ")[2].strip())
        self.remedy = remedy
        super().__init__("; ".join(filter(None, [self.message, remedy])))


class Unsupported(Exception):
    """A technique that cannot run on this device. Its run is one row with a reason, exit code 0."""


def nearest(word, names):
    """Return "the nearest is steps" for a word that is none of names, "" if all are far."""
    matches = difflib.get_close_matches(word, [*names], n=1)
    return f"the nearest is {matches[0]}" if matches else ""


def unknown(problem, word, names):
    """Return a UserError for a word that is none of names: it has the nearest, or a few names."""
    choices = f"choose {', '.join(names)}"
    if len(names) > FEW:
        choices = f"{paths.COMMAND} help T=all lists them"
    return UserError(problem, nearest(word, names) or choices)


def first_line(error):
    """Return an exception's message, cut to one line."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]


@contextmanager
def naming(path, remedy=""):
    """Raise a UserError that names the path in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", remedy) from None


@contextmanager
def exit_on_error(program):
    """End a command in one line: exit code 2 for a UserError or a file, 130 for Ctrl-C.

    A closed or full stdout ends it with exit code 1 and no line.
    """
    is_closed = sys.stdout is None
    if is_closed:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, closed with the process

    try:
        yield
        sys.stdout.flush()
        if is_closed:
            sys.exit(1)
    except UserError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.filename:
            line = f"{program}: error: {error.filename}: {error.strerror}"
            print(printable(line), file=sys.stderr)
            sys.exit(2)
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        silence(sys.stdout)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted", file=sys.stderr)
        sys.exit(130)


def run_command(program, function):
    """Call function with the words of the command line, and end the process with its exit code.

    A command that makes something has a line `Next:` in its docstring, which is printed at its end.
    """
    with exit_on_error(program):
        code = function(*sys.argv[1:])
        step = re.search("^Next: (.*)", sys.modules["__main__"].__doc__ or "", re.MULTILINE)
        if step and not code:
            print(f"next: {paths.as_called(step[1])}")
    sys.exit(code)


def say(line, stream=None):
    """Print a line, by default to stdout. A line for a closed or full stream is lost."""
    try:
        print(line, file=stream, flush=True)
    except OSError:
        silence(stream or sys.stdout)


@functools.cache
def say_once(line):
    """Print a line to stderr, unless this process has."""
    say(line, sys.stderr)


def silence(stream):
    """Let a stream accept all that is written from now on, and lose it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
