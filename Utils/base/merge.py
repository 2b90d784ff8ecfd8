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
    """`mine` with what leads from `base` to `other`; each is a script's text. None where the two
    changes contradict each other."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("mine", "base", "other")]
        for path, text in zip(paths, (mine, base, other), strict=True):
            path.write_text("".join(f"{json.dumps(token)}\n" for token in _tokens(text)))
        command = ["git", "merge-file", "-p", "--diff3", *map(str, paths)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            raise UserError("git is not there, and variants are merged by it") from None
    if done.returncode > 127:
        raise UserError(f"git merge-file: {done.stderr.strip()}")
    merged = _settle(done.stdout.splitlines())
    return merged and "".join(map(json.loads, merged))


def merge_aligned(mine, base, other):
    """As `merge`, but aligned by the longest runs of words that two texts have in common, where git
    looks for the fewest changes: of a long insertion it may take single words for what was there.
    """
    merged = _apply_both(*map(_tokens, (mine, base, other)))
    return merged and "".join(merged)


def _tokens(text):
    """Words, single other characters, and the blanks between: joined, they are the text again."""
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _settle(lines):
    """The merged lines, each conflict settled whose two sides change different words of it; None
    where one cannot be."""
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
    """`base` with the changes of both sides, or None where they touch the same words or insert at
    the same place."""
    edits = sorted(_edits(base, mine) + _edits(base, other))
    merged, end = [], 0
    for (start, stop, words), after in zip(edits, [*edits[1:], None], strict=True):
        if start < end or (after and after[:2] == (start, start)):
            return None
        merged += base[end:start] + words
        end = stop
    return merged + base[end:]


def _edits(base, side):
    """What leads from base to side, as (start, stop, the words in place of base[start:stop])."""
    matcher = difflib.SequenceMatcher(None, base, side, autojunk=False)
    changes = (change for change in matcher.get_opcodes() if change[0] != "equal")
    return [(start, stop, side[first:last]) for _, start, stop, first, last in changes]
