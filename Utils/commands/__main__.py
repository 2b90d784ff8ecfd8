"""Run a command: python -m Utils.commands NAME [SETTING=value ...]."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one")

import importlib
import os
from pathlib import Path

from Utils.base.errors import UserError, one_line


def main(command="help", *words):
    """Run a command. Return its exit code."""
    name = command.replace("-", "_")
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    if name not in names:
        raise UserError(f"there is no such command; choose {', '.join(names)}")
    return importlib.import_module(f"Utils.commands.{name}").main(words)


if __name__ == "__main__":
    code = 0
    with one_line(sys.argv[1] if len(sys.argv) > 1 else "help"):
        try:
            code = main(*sys.argv[1:])
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)
