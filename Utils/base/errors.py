"""The two ways to stop that are nobody's bug. Both end in one line, never in a traceback."""

import sys
from contextlib import contextmanager


class UserError(Exception):
    """What was asked for cannot be done: the message names the remedy. Exit code 2, no row."""

    def __init__(self, message):
        # A DataLoader raises what a worker has raised with the worker's traceback in front.
        super().__init__(message.rpartition("UserError: ")[2].strip())


class Unsupported(Exception):
    """This device or environment cannot run the technique. One row with the reason, exit code 0."""


def first_line(error):
    """What an exception says, in one line."""
    return (str(error).strip() or type(error).__name__).split("\n")[0]


@contextmanager
def one_line(program):
    """Around a command: a UserError ends it with one line and exit code 2, Ctrl-C with another and
    130."""
    try:
        yield
    except UserError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted", file=sys.stderr)
        sys.exit(130)
