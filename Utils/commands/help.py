"""Print the targets of the Makefile to start with; --all, the techniques and variables too."""

import shutil
import sys
import textwrap

from Utils.base import command_line
from Utils.scripts import ladder

START = ("smoke", "all", "report", "recipe", "doctor", "forecast", "adopt")


def main(args):
    """Return the exit code: 2 if args.target is given, which is no target."""
    sections = command_line.targets()
    helps = {name: help for targets in sections.values() for name, help in targets.items()}
    techniques = ladder.techniques()
    if args.target:
        nearest = command_line.nearest(args.target, [*helps, *techniques])
        print(f"make {args.target}: no such command{nearest}; see make help", file=sys.stderr)
        return 2

    if args.all:
        for section, targets in sections.items():
            show(section, targets)
        headlines = {technique.name: technique.headline for technique in techniques.values()}
        show("Techniques, each a target of its name", headlines)
        for title, settings in command_line.variables().items():
            show(title, settings, 24)
        print("\nVariables are given as in make all ROUNDS=3 STEPS=100.", end="")
    else:
        show("To start with, in this order", {f"make {name}": helps[name] for name in START})
        more = {title: ", ".join(targets) for title, targets in sections.items()}
        show(
            "All commands; make help says what each does, and lists techniques and variables", more
        )
    print("\nPYTHON=python3 uses an existing environment; without it, .venv is created.")
    return 0


def show(title, helps, width=20):
    """Print a title and helps by name, wrapped to the terminal."""
    print(f"\n{title}")
    columns = min(100, shutil.get_terminal_size((100, 0)).columns)
    for name, help in helps.items():
        start = f"  {name:{width}} "
        lines = textwrap.wrap(help, max(30, columns - len(start)), break_on_hyphens=False)
        print(start + f"\n{' ' * len(start)}".join(lines))
