"""Expected failures: bad input, unsupported device. Both end in one line, never in a traceback."""

import sys
from contextlib import contextmanager


class UserError(Exception):
    """What was asked for cannot be done. Exit code 2, no row.

    remedy: what to do about it, where `message` does not say so itself; str() joins the two.
    """

    def __init__(self, message, remedy=""):
        # A DataLoader raises what a worker has raised with the worker's traceback in front.
        self.message, self.remedy = message.rpartition("UserError: ")[2].strip(), remedy
        super().__init__("; ".join(filter(None, [self.message, remedy])))


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
