"""Print the list of techniques, or the diff of one against its parent."""

from __future__ import annotations

import sys

from Utils.base import errors
from Utils.scripts import ladder, variants

COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}


def main(command, *names):
    """Print a list of techniques or a diff.

    list: every technique with its headline. diff NAME [WITHOUT]: docstring, and code against the
    parent's, in colour on a terminal; with WITHOUT, of that variant against NAME.
    """
    if command == "list":
        for technique in ladder.techniques().values():
            print(f"  {technique.name:20} {technique.headline}")
        return

    technique = variants.find("-".join(filter(None, names)))
    print(technique.doc)
    if technique.parent is None:
        print(technique.code.strip("\n"))
        return
    for line in ladder.diff(technique, variants.find(technique.parent)):
        colour = COLOURS.get(line[:1], "") if sys.stdout.isatty() else ""
        print(f"{colour}{line}\033[0m" if colour else line)


if __name__ == "__main__":
    with errors.one_line("ladder"):
        main(*sys.argv[1:])
