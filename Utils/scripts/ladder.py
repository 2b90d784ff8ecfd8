"""The scripts, their order, the facts in their docstrings, and their diffs.

A technique is a script, at the top level or in beyond/, whose docstring has a line `Parent:`. There
is no other list of them: a copy of a script under a new name is a technique too.
"""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError

BASELINE = "no_optimization"
IN_FLOAT16 = "this GPU has no bfloat16: scripts in float16 take the place of those that need it"
FACTS = ("Parent", "Needs", "Gains", "Costs", "See")


@dataclass(frozen=True)
class Facts:
    """The facts that a script's docstring states.

    parent: name of the script that this one extends, or None.
    needs: names of the checks that a run has to pass, in order; see `device.capabilities`.
    gains: time, memory or nothing, the most important first.
    texts: the full text of each of FACTS, on one line.
    """

    parent: str | None
    needs: tuple
    gains: tuple
    texts: dict


def facts(doc):
    """Return the Facts of a docstring."""
    lines = re.findall(rf"^({'|'.join(FACTS)}): +(.*(?:\n +\S.*)*)", doc, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in lines}
    parent = texts.get("Parent", "none")
    names = {}
    for fact in ("Needs", "Gains"):
        listed = re.match(r"[^;:]*", texts.get(fact, "nothing"))[0]
        names[fact] = tuple(word.strip() for word in listed.split(",") if word.strip())
    needs = () if names["Needs"] == ("nothing",) else names["Needs"]
    return Facts(None if parent == "none" else parent, needs, names["Gains"], texts)


@dataclass(frozen=True)
class Technique:
    name: str  # the file's stem, the label of its results
    path: Path
    doc: str
    code: str  # all after the docstring
    facts: Facts

    @property
    def headline(self):
        return self.doc.split("\n", 1)[0]

    @property
    def paragraph(self):
        """How the technique works, on one line."""
        return " ".join(self.doc.split("\n\n")[1].split())

    @property
    def parent(self):
        return self.facts.parent

    @property
    def needs(self):
        return self.facts.needs

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
    """Return all techniques by name, parents before children, the longest line first.

    Raises UserError where two have one name.
    """
    scripts = {}
    for path in [*sorted(root.glob("*.py")), *sorted(root.glob("beyond/**/*.py"))]:
        doc, code = split(path.read_text(errors="replace"))
        stated = facts(doc)
        if "Parent" not in stated.texts:
            continue
        if path.stem in scripts:
            first = scripts[path.stem].path.relative_to(root)
            raise UserError(f"{first} and {path.relative_to(root)} have one name", "rename one")
        scripts[path.stem] = Technique(path.stem, path, doc, code, stated)

    def descend(parent):
        """Sort lines of descent: the longest first; then by name, letters before digits."""
        children = [technique for technique in scripts.values() if technique.parent == parent]
        lines = [[child, *descend(child.name)] for child in children]
        lines.sort(key=lambda line: (-len(line), [(c.isdigit(), c) for c in line[0].name]))
        return list(itertools.chain.from_iterable(lines))

    in_order = {technique.name: technique for technique in descend(None)}
    return in_order | scripts  # techniques with an unknown parent come last


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
    """Return the names from the baseline down to a technique, both included. Raises UserError.

    scripts: `techniques()`, to avoid reading the scripts again.
    """
    scripts = scripts or techniques()
    names = []
    while name is not None:
        if name not in scripts or name in names:
            raise UserError(f"{[name, *names][-1]} does not descend from {BASELINE}: see {name}")
        names.append(name)
        name = scripts[name].parent
    return names[::-1]


def group(name, bfloat16=True):
    """Return the techniques of a group, or None for any other word.

    ladder: the top level; on a device without bfloat16, beyond/float16/ in place of what needs it.
    beyond: those of beyond/, with their parents and the baseline, over which their ratios are
    taken. everything: all.
    """
    scripts = techniques()
    if name == "everything":
        return list(scripts.values())
    if name == "ladder":
        top = [technique for technique in scripts.values() if technique.at_top_level]
        if not bfloat16:
            top = [technique for technique in top if "bfloat16" not in technique.needs]
            top += [t for t in scripts.values() if t.path.parent.name == "float16"]
        return top
    if name == "beyond":
        names = beyond()
        names |= {scripts[name].parent for name in names} | {BASELINE}
        return [technique for technique in scripts.values() if technique.name in names]
    return None


def beyond():
    """Return the names of the techniques in beyond/, a set."""
    return {technique.name for technique in techniques().values() if not technique.at_top_level}


def with_needs(needs, names, sign="+"):
    """Return needs changed by the diffs of techniques, a list.

    Each adds what its parent lacks, and removes what only its parent has; with the sign - the
    reverse.
    """
    scripts = techniques()
    needs = list(needs)
    for name in names:
        added = scripts[name].needs
        removed = scripts[scripts[name].parent].needs
        if sign == "-":
            added, removed = removed, added
        needs = [need for need in needs if need in added or need not in removed]
        needs += [need for need in added if need not in removed and need not in needs]
    return needs


def diff(technique, parent, context=3):
    """Return the lines of a unified diff of two techniques' code, without docstrings."""
    lines = (code.strip("\n").splitlines() for code in (parent.code, technique.code))
    names = parent.path.name, technique.path.name
    return [*difflib.unified_diff(*lines, *names, n=context, lineterm="")]
