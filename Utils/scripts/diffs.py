"""Diffs of scripts, and their merges by `git merge-file`."""

import ast
import difflib
import functools
import json
import re
import subprocess
import tempfile
from pathlib import Path

from Utils.base.errors import UserError

WORD = re.compile(r"\w+|\s+|[^\w\s]")  # a word, blanks, or another character
CONFLICT = re.compile(  # mine, base and theirs in git's diff3 style
    r"^<{7} .*?\n(.*?)^\|{7} .*?\n(.*?)^={7}\n(.*?)^>{7} .*?\n", re.MULTILINE | re.DOTALL
)


def diff(technique, parent, context: int = 3) -> list[str]:
    """Return the lines of a unified diff of two techniques' code, without docstrings.

    technique, parent: ladder.Techniques.
    context: number of unchanged lines around a change.
    """
    old, new = (script.code.strip("\n").splitlines() for script in (parent, technique))
    names = parent.path.name, technique.path.name
    return [*difflib.unified_diff(old, new, *names, n=context, lineterm="")]


@functools.cache
def merge(mine: str, base: str, theirs: str) -> str | None:
    """Return `mine` with the changes from `base` to `theirs`.

    None if the changes conflict, or the result is not Python. Raises UserError without git.
    """
    texts = {"mine": mine, "base": base, "theirs": theirs}
    command = ["git", "merge-file", "-p", "--diff3", *texts]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            words = [json.dumps(word) for word in WORD.findall(text)]
            Path(folder, name).write_text("\n".join([*words, ""]))
        try:
            merged = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
        except OSError:
            raise UserError("merging variants needs git", "install git") from None

    for conflict in CONFLICT.finditer(merged):
        sides = [side.splitlines(keepends=True) for side in conflict.groups()]
        words = apply_both(*sides)
        if words is None:
            return None
        merged = merged.replace(conflict[0], "".join(words), 1)
    return python_code(map(json.loads, merged.splitlines()))


def python_code(words):
    """Return the code that words make; None if it is not Python.

    Words that one side changes together can be far apart in the other text.
    """
    code = "".join(words)
    try:
        ast.parse(code)
    except SyntaxError:
        return None
    return code


def apply_both(mine, base, theirs):
    """Return `base`, a list of words, with the changes of both sides; None if they overlap."""
    edits = []
    for side in (mine, theirs):
        matcher = difflib.SequenceMatcher(None, base, side, autojunk=False)
        for kind, start, stop, first, last in matcher.get_opcodes():
            if kind != "equal":
                edits.append((start, stop, side[first:last]))

    merged = []
    end = 0
    inserted_at = None
    for start, stop, words in sorted(edits):
        if start < end or start == stop == inserted_at:
            return None
        merged += base[end:start] + words
        end = stop
        inserted_at = start if start == stop else None
    return merged + base[end:]
