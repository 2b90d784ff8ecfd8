"""Merge two changes of one script, token by token."""

import difflib
import json
import re
import subprocess
import tempfile
from pathlib import Path

from Utils.base.errors import UserError

MARKS = "<<<<<<< ", "||||||| ", "=======", ">>>>>>> "  # around a conflict, in git's diff3 style


def merge(mine, base, other):
    """Return `mine` with the changes from `base` to `other`, or None where changes conflict.

    All are texts of scripts.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("mine", "base", "other")]
        for path, text in zip(paths, (mine, base, other), strict=True):
            path.write_text("".join(f"{json.dumps(token)}\n" for token in _tokens(text)))
        command = ["git", "merge-file", "-p", "--diff3", *map(str, paths)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            raise UserError("merging variants needs git", "install git") from None
    if done.returncode > 127:
        raise UserError(f"git merge-file: {done.stderr.strip()}")
    merged = _settle(done.stdout.splitlines())
    return merged and "".join(map(json.loads, merged))


def merge_aligned(mine, base, other):
    """Merge as `merge` does, aligned by the longest common runs of tokens.

    git minimizes the number of changes, and may match single tokens inside a long insertion.
    """
    merged = _apply_both(*map(_tokens, (mine, base, other)))
    return merged and "".join(merged)


def _tokens(text):
    """Split a text into words, blanks and single other characters; joined they are the text."""
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _settle(lines):
    """Return the merged lines, or None where both sides of a conflict change the same words."""
    merged, sides = [], None
    for line in lines:
        if line.startswith(MARKS[0]):
            sides = [[]]
        elif sides is not None and line.startswith(MARKS[1:3]):
            sides.append([])
        elif sides is not None and line.startswith(MARKS[3]):
            both = _apply_both(*sides)
            if both is None:
                return None
            merged, sides = merged + both, None
        else:
            (merged if sides is None else sides[-1]).append(line)
    return merged


def _apply_both(mine, base, other):
    """Return `base` with the changes of both sides, or None where they overlap."""
    edits = sorted(_edits(base, mine) + _edits(base, other))
    merged, end = [], 0
    for (start, stop, words), after in zip(edits, [*edits[1:], None], strict=True):
        if start < end or (after and after[:2] == (start, start)):
            return None
        merged += base[end:start] + words
        end = stop
    return merged + base[end:]


def _edits(base, side):
    """Return the changes from base to side: (start, stop, words that replace base[start:stop])."""
    matcher = difflib.SequenceMatcher(None, base, side, autojunk=False)
    changes = (change for change in matcher.get_opcodes() if change[0] != "equal")
    return [(start, stop, side[first:last]) for _, start, stop, first, last in changes]
