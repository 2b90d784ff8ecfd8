"""Merge two changes of one script, token by token."""

import difflib
import functools
import json
import re
import subprocess
import tempfile
from pathlib import Path

from Utils.base.errors import UserError

MARKS = "<<<<<<< ", "||||||| ", "=======", ">>>>>>> "  # around a conflict, in git's diff3 style


@functools.cache
def merge(mine, base, theirs):
    """Return `mine` with the changes from `base` to `theirs`, or None where changes conflict.

    All are texts of scripts.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("mine", "base", "theirs")]
        for path, text in zip(paths, (mine, base, theirs), strict=True):
            path.write_text("".join(f"{json.dumps(token)}\n" for token in _tokens(text)))
        command = ["git", "merge-file", "-p", "--diff3", *map(str, paths)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            raise UserError("merging variants needs git", "install git") from None
    if done.returncode > 127:
        raise UserError(f"git merge-file: {done.stderr.strip()}")
    lines = _without_marks(done.stdout.splitlines())
    return None if lines is None else "".join(map(json.loads, lines))


def merge_aligned(mine, base, theirs):
    """Merge as `merge` does, aligned by the longest common runs of tokens.

    git minimizes the number of changes, and may match single tokens inside a long insertion.
    """
    tokens = _apply_both(_tokens(mine), _tokens(base), _tokens(theirs))
    return None if tokens is None else "".join(tokens)


def _tokens(text):
    """Split a text into words, blanks and single other characters; joined they are the text."""
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _without_marks(lines):
    """Return the merged lines, or None where both sides of a conflict change the same words."""
    merged = []
    sides = []  # of the conflict that a line is in: mine, base, theirs
    for line in lines:
        if line.startswith(MARKS[0]):
            sides = [[]]
        elif sides and line.startswith(MARKS[1:3]):
            sides.append([])
        elif sides and line.startswith(MARKS[3]):
            both = _apply_both(*sides)
            if both is None:
                return None
            merged += both
            sides = []
        elif sides:
            sides[-1].append(line)
        else:
            merged.append(line)
    return merged


def _apply_both(mine, base, theirs):
    """Return `base` with the changes of both sides, or None where they overlap."""
    edits = sorted(_edits(base, mine) + _edits(base, theirs))
    merged = []
    end = 0
    inserted_at = None
    for start, stop, words in edits:
        if start < end or start == stop == inserted_at:
            return None
        merged += base[end:start] + words
        end = stop
        inserted_at = start if start == stop else None
    return merged + base[end:]


def _edits(base, side):
    """Return the changes from base to side: (start, stop, words that replace base[start:stop])."""
    matcher = difflib.SequenceMatcher(None, base, side, autojunk=False)
    changes = (change for change in matcher.get_opcodes() if change[0] != "equal")
    return [(start, stop, side[first:last]) for _, start, stop, first, last in changes]
