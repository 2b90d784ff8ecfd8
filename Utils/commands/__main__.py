"""Run a command: .venv/bin/python -m Utils.commands NAME [SETTING=value ...]."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"{sys.executable} is older than Python 3.11; set PYTHON to a newer one")

import importlib
from pathlib import Path

from Utils.base.errors import run_command, unknown

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def main(command="help", *words):
    """Run a command. Return its exit code."""
    name = command.replace("-", "_")
    if name not in NAMES:
        raise unknown("there is no such command", name, NAMES)

    module = importlib.import_module(f"Utils.commands.{name}")
    sys.modules["__main__"].__doc__ = module.__doc__  # run_command prints its line Next:
    return module.main(*words)


if __name__ == "__main__":
    run_command(sys.argv[1] if len(sys.argv) > 1 else "help", main)
