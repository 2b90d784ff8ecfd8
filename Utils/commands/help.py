"""Print the targets of the Makefile to start with; --all, all, with techniques and variables."""

import sys
from collections import ChainMap

from Utils.base import command_line
from Utils.base.errors import nearest
from Utils.base.text import hanging
from Utils.scripts import ladder

START = ("smoke", "all", "report", "recipe", "doctor", "forecast", "adopt")
BY_NAME = ("Short names", "Housekeeping", "Develop")  # sections without help in `make help`
TECHNIQUES = "Techniques"


def main(*words):
    """Return the exit code: 2 for --target, which names none."""
    parser = command_line.Parser("help", __doc__, "t")
    parser.add_argument("--all", action="store_true", help="print all")
    parser.add_argument("--target", help="a target that does not exist")
    args = parser.parse_args(words)

    sections = command_line.targets()
    helps = ChainMap(*sections.values())
    techniques = ladder.techniques()
    if args.target:
        near = nearest(args.target, [*helps, *techniques]) or "see make help"
        print(f"make {args.target}: no such command; {near}", file=sys.stderr)
        return 2

    if args.t:
        headlines = {name: technique.headline for name, technique in techniques.items()}
        sections |= {TECHNIQUES: headlines, **command_line.variables()}
        end = "Variables are given as in make all ROUNDS=3 STEPS=100."
    elif args.all:
        names = {title: ", ".join(sections.pop(title)) for title in BY_NAME}
        names["Variables"] = ", ".join(map(str.upper, command_line.SETTINGS))
        names[TECHNIQUES] = ", ".join(techniques)
        sections["By name"] = names
        end = "make help T=all has a line on each. Variables are given as in make all ROUNDS=3."
    else:
        start = {f"make {name}": helps[name] for name in START}
        names = {title: ", ".join(targets) for title, targets in sections.items()}
        sections = {"To start with, in this order": start, "All commands": names}
        end = "make help says what each does, and lists techniques and variables."

    for title, texts in sections.items():
        print(title)
        width = max(map(len, texts))
        for name, text in texts.items():
            print(hanging(f"  {name:{width}}  ", text))
        print()
    print(end)
    print("PYTHON=python3 uses an existing environment; without it, .venv is created.")
    return 0
