"""The scripts, their order, the facts in their docstrings, their diffs, and merges of diffs.

A technique is a script, at the top level or in beyond/, whose docstring has a line `Parent:`. There
is no other list of them: a copy of a script under a new name is a technique too."""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import json
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError

BASELINE = "no_optimization"
IN_FLOAT16 = "this GPU has no bfloat16: scripts in float16 take the place of those that need it"
NOTE_IN_FLOAT16 = "in float16"  # of a run whose script has bfloat16
FLOAT16 = {  # of each script of the ladder with bfloat16, the one in float16
    "brainFloat16": "float16_grad_scaler",
    "torch_compile": "float16_compile",
    "flash_attention": "float16_attention",
    "fused_optimizer": "float16_fused_optimizer",
    "8bit_optimizer": "float16_8bit_optimizer",
}
UNFIT = re.compile(r"bfloat16|clip_grad|\.step\(\)")  # a type; gradients that are still scaled
_bfloat16 = ContextVar("whether scripts are seen as a device with bfloat16 runs them", default=True)
FACTS = ("Parent", "Needs", "Gains", "Costs", "See")
PARITIES = ("another optimizer", "approximate")  # the loss of other updates, and of a few bits
WORD = re.compile(r"\w+|\s+|[^\w\s]")  # or blanks, or another character
CONFLICT = re.compile(  # mine, base and theirs in git's diff3 style
    r"^<{7} .*?\n(.*?)^\|{7} .*?\n(.*?)^={7}\n(.*?)^>{7} .*?\n", re.MULTILINE | re.DOTALL
)


def facts(doc):
    """Return what a docstring states of a Technique: parent, needs and facts."""
    lines = re.findall(rf"^({'|'.join(FACTS)}): +(.*(?:\n +\S.*)*)", doc, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in lines}
    parent = texts.get("Parent", "none")
    listed = re.match(r"[^;:]*", texts.get("Needs", "nothing"))[0]
    words = (word.strip() for word in listed.split(","))
    needs = tuple(word for word in words if word not in ("", "nothing"))
    return {"parent": None if parent == "none" else parent, "needs": needs, "facts": texts}


@dataclass(frozen=True)
class Technique:
    name: str  # the file's stem, the label of its results
    path: Path
    doc: str
    code: str  # all after the docstring
    parent: str | None  # the name of the script that this one extends
    needs: tuple  # names of checks that a run has to pass, in order; see `device.capabilities`
    facts: dict  # the full text of each of FACTS in the docstring, on one line
    note: str = ""  # on all its runs
    misfit: str = ""  # why its diff has no place in float16

    @property
    def headline(self):
        return self.doc.split("\n", 1)[0]

    @property
    def stated_parity(self):
        """What its Costs say first of its losses: one of PARITIES, or ""."""
        costs = self.facts.get("Costs", "")
        return next((p for p in PARITIES if costs.startswith(p)), "")

    @property
    def at_top_level(self):
        return self.path.parent == paths.ROOT

    @property
    def module(self):
        """The script's dotted name, as in beyond.memory.larger_batch."""
        return ".".join(self.path.relative_to(paths.ROOT).with_suffix("").parts)

    @property
    def command(self):
        """Arguments for Python that run the script, with ROOT on the path."""
        if self.path.is_relative_to(paths.ROOT / "beyond"):
            return ["-m", self.module]
        return [str(self.path)]

    python = sys.executable
    refusal = ""  # no script of ours is refused before it has run

    def environment(self, **more):
        """Return the environment of its process, a dict."""
        return paths.environment(**more)


def techniques(root=paths.ROOT):
    """Return all techniques by name, parents before children, the longest line first; within
    `on_device`, as that device runs them. Raises UserError where two have one name."""
    scripts = {}
    for path in [*sorted(root.glob("*.py")), *sorted(root.glob("beyond/**/*.py"))]:
        stat = path.stat()
        doc, code, stated = _read(path, stat.st_mtime_ns, stat.st_size)
        if "Parent" not in stated["facts"]:
            continue
        if path.stem in scripts:
            first = scripts[path.stem].path.relative_to(root)
            raise UserError(f"{first} and {path.relative_to(root)} have one name", "rename one")
        scripts[path.stem] = Technique(path.stem, path, doc, code, **stated)
    scripts = _in_order(scripts)
    return scripts if _bfloat16.get() else _in_order(_in_float16(scripts))


def tracked():
    """Return the techniques whose scripts git tracks, as `techniques` does.

    An untracked script is someone's own idea, of which no test and no committed page says anything.
    Outside a git checkout all scripts count.
    """
    scripts = techniques()
    names = {*paths.git("ls-files", "-z", "--", "*.py").split("\0")}
    in_git = {
        name: script
        for name, script in scripts.items()
        if script.path.relative_to(paths.ROOT).as_posix() in names
    }
    return _in_order(in_git) if in_git else scripts


@functools.cache
def _read(path, modified_ns, size):
    """Return a script's docstring, code and facts, read once unless the file has changed."""
    doc, code = split(path.read_text(errors="replace"))
    return doc, code, facts(doc)


def _in_order(scripts):
    def descend(parent):
        """Sort lines of descent: the longest first; then by name, letters before digits."""
        children = [technique for technique in scripts.values() if technique.parent == parent]
        lines = [[child, *descend(child.name)] for child in children]
        lines.sort(key=lambda line: (-len(line), [(c.isdigit(), c) for c in line[0].name]))
        return list(itertools.chain.from_iterable(lines))

    in_order = {technique.name: technique for technique in descend(None)}
    return in_order | scripts  # techniques with an unknown parent come last


@contextmanager
def on_device(bfloat16):
    """Within the block, see scripts as a device with or without bfloat16 runs them."""
    token = _bfloat16.set(bfloat16)
    try:
        yield
    finally:
        _bfloat16.reset(token)


def replaced():
    """Return the scripts of the ladder that others take the place of; see `on_device`."""
    return {} if _bfloat16.get() else FLOAT16


def _in_float16(scripts):
    """Return scripts with the diffs of those that need bfloat16 merged onto the float16 line."""
    changed = dict(scripts)
    for name, script in scripts.items():
        if name in FLOAT16:
            instead = scripts[FLOAT16[name]]
            changes = {"code": instead.code, "parent": instead.parent}
            changes |= {"needs": instead.needs, "facts": instead.facts}
        elif "bfloat16" in script.needs and script.parent in scripts:
            before, parent = scripts[script.parent], changed[script.parent]
            code = merge(parent.code, before.code, script.code)
            added = [need for need in script.needs if need not in before.needs]
            misfit = parent.misfit or _misfit(parent, before, script, code)
            needs = (*parent.needs, *added)
            changes = {"code": code or script.code, "needs": needs, "misfit": misfit}
            changes["parent"] = FLOAT16.get(before.name, before.name)
        else:
            continue
        changed[name] = replace(script, note=NOTE_IN_FLOAT16, **changes)
    return changed


def _misfit(parent, before, script, code):
    """Return why a script's diff has no place in float16, or "". code: it merged, or None."""
    _, _, reason = script.facts["Needs"].partition("; ")
    if reason.startswith("in float16"):
        return f"needs bfloat16: {reason}"
    sides = (parent, before, script)
    theirs, old, new = ([line.strip() for line in s.code.splitlines()] for s in sides)
    added = [line for line in new if line not in old]
    lines = [line for line in added if UNFIT.search(line.partition("#")[0])]
    if not lines and code is None:
        lines = [line for line in old if line not in theirs and line not in new] or added
    return f"needs bfloat16: in float16 its diff has no place at {lines[0]!r}" if lines else ""


def split(source):
    """Return (docstring, code after it) of a script."""
    doc, _, code = source.removeprefix('"""').partition('"""')
    return doc, code


def get(name):
    """Return the technique of that name. Raises UserError."""
    scripts = techniques()
    if name not in scripts:
        raise UserError(f"no technique {name!r}", f"choose {', '.join(scripts)}")
    return scripts[name]


def line(name, scripts=None):
    """Return the names from the baseline to a technique, one of scripts. Raises UserError."""
    scripts = scripts or techniques()
    names = []
    while name is not None:
        if name not in scripts or name in names:
            raise UserError(f"{[name, *names][-1]} does not descend from {BASELINE}: see {name}")
        names.append(name)
        name = scripts[name].parent
    return names[::-1]


def group(name):
    """Return the techniques of a group, or None for any other word.
    ladder: the top level; without bfloat16, those in float16 in place of what needs it.
    beyond: all others, with their parents and the baseline, over which their ratios are taken.
    everything: all."""
    instead = replaced()
    scripts = {n: script for n, script in techniques().items() if n not in instead}
    in_ladder = {n for n, t in scripts.items() if t.at_top_level or n in instead.values()}
    outside = scripts.keys() - in_ladder
    parents = {scripts[n].parent for n in outside} | {BASELINE}
    names = {"ladder": in_ladder, "beyond": outside | parents, "everything": scripts}.get(name)
    return names and [technique for n, technique in scripts.items() if n in names]


def beyond():
    """Return the names of the techniques outside the ladder, a set."""
    return {t.name for t in group("everything")} - {t.name for t in group("ladder")}


def diff(technique, parent, context=3):
    """Return the lines of a unified diff of two techniques' code, without docstrings."""
    lines = (code.strip("\n").splitlines() for code in (parent.code, technique.code))
    names = parent.path.name, technique.path.name
    return [*difflib.unified_diff(*lines, *names, n=context, lineterm="")]


@functools.cache
def merge(mine, base, theirs):
    """Return `mine` with the changes from `base` to `theirs`; None where that is no Python."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("mine", "base", "theirs")]
        for path, text in zip(files, (mine, base, theirs), strict=True):
            path.write_text("".join(f"{json.dumps(word)}\n" for word in WORD.findall(text)))
        command = ["git", "merge-file", "-p", "--diff3", *map(str, files)]
        try:
            merged = subprocess.run(command, capture_output=True, text=True).stdout
        except OSError:
            raise UserError("merging variants needs git", "install git") from None
    for conflict in CONFLICT.finditer(merged):
        words = _apply_both(*(side.splitlines(keepends=True) for side in conflict.groups()))
        if words is None:
            return None
        merged = merged.replace(conflict[0], "".join(words), 1)
    return _python(map(json.loads, merged.splitlines()))


def merge_aligned(mine, base, theirs):
    """Merge as `merge` does, but by the longest common runs of words: git may match single words
    inside a long insertion."""
    words = _apply_both(*map(WORD.findall, (mine, base, theirs)))
    return None if words is None else _python(words)


def _python(words):
    """Return words as code, or None: those of one change can lie apart in the other text."""
    code = "".join(words)
    try:
        ast.parse(code)
    except SyntaxError:
        return None
    return code


def _apply_both(mine, base, theirs):
    """Return `base`, a list, with the changes of both sides, or None where they overlap."""
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
