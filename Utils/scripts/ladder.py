"""Ladders: ordered scripts, each with its name, its parent and the command that starts it.

A technique is a script, at the top level or in beyond/, whose docstring has a line `Parent:`. There
is no other list of them: a copy of a script under a new name is a technique too.

Three functions make a Ladder: `repository`, in the precision of a device, `variants.ablation`, and
the switches of a user's script. Code that launches or analyses one does
not depend on its origin.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from Utils.base import paths
from Utils.base.errors import UserError, unknown
from Utils.scripts.identity import Identity, identity_variable
from Utils.scripts.precisions import BFLOAT16, FLOAT16, PRECISIONS, variant  # noqa: F401  (for callers)

BASELINE = "no_optimization"
FACTS = ("Parent", "Needs", "Gains", "Costs", "See")
PARITIES = ("another optimizer", "approximate")  # losses differ by other updates, by a few bits


def docstring_facts(doc: str) -> dict:
    """Return the parent, needs and facts of a Technique, as its docstring states them."""
    fields = re.findall(rf"^({'|'.join(FACTS)}): +(.*(?:\n +\S.*)*)", doc, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in fields}
    parent = texts.get("Parent", "none")

    listed = re.match(r"[^;:]*", texts.get("Needs", "nothing"))[0]
    words = (word.strip() for word in listed.split(","))
    needs = tuple(word for word in words if word not in ("", "nothing"))
    return {"parent": None if parent == "none" else parent, "needs": needs, "facts": texts}


def split(source: str) -> tuple[str, str]:
    """Return (docstring, code after it) of a script."""
    doc, _, code = source.removeprefix('"""').partition('"""')
    return doc, code


class Script(Protocol):
    """What a launcher reads of a ladder's script: one of ours, a variant, a user's, or a loop."""

    name: str  # the label of its results
    label: str  # in progress lines
    doc: str  # states needs and settings of its own, "" if it has none
    code: str
    parent: str | None  # name of the script that it is compared with, None for a base
    suite: str  # see Identity
    needs: tuple[str, ...]  # checks that a run has to pass; see `device.capabilities`
    refusal: str  # why it is not run, or ""
    is_emulated: bool  # the device emulates what it adds: it runs once, for two steps
    python: str
    command: list[str]  # arguments for that Python
    identity: Identity
    resume_key: str  # the same text in suites of which one may resume the other

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of its process. more: variables to add."""


@dataclass(frozen=True)
class Technique:
    """A script of the repository, or made of several of them: a Script."""

    name: str  # the file's stem, the label of its results
    path: Path
    doc: str
    code: str  # all after the docstring
    parent: str | None  # name of the script that it extends, None for a base
    needs: tuple[str, ...]  # checks that a run has to pass, in order; see `device.capabilities`
    facts: dict[str, str]  # text of each of FACTS in the docstring, on one line
    suite: str = "ladder"  # see Identity
    change: str = ""  # see Identity; by default it adds itself
    note: str = ""  # on all its runs
    misfit: str = ""  # why its diff has no place in the precision of the device, or ""
    is_emulated: bool = False  # the device emulates what it adds: it runs once, for two steps

    python = sys.executable
    refusal = ""  # scripts of the repository are not refused before they run

    @property
    def label(self) -> str:
        return self.name

    @property
    def headline(self) -> str:
        """The first line of its docstring."""
        return self.doc.split("\n", 1)[0]

    @property
    def stated_parity(self) -> str:
        """The first words of its Costs, if they are one of PARITIES, otherwise ""."""
        costs = self.facts.get("Costs", "")
        return next((parity for parity in PARITIES if costs.startswith(parity)), "")

    @property
    def at_top_level(self) -> bool:
        return self.path.parent == paths.ROOT

    @property
    def module(self) -> str:
        """The script's dotted name, as in beyond.memory.larger_batch."""
        return ".".join(self.path.relative_to(paths.ROOT).with_suffix("").parts)

    @property
    def command(self) -> list[str]:
        """Arguments for Python that run the script, with ROOT on the path."""
        if self.path.is_relative_to(paths.ROOT / "beyond"):
            return ["-P", "-m", self.module]  # the current folder may have modules of our names
        return [str(self.path)]

    @property
    def resume_key(self) -> str:
        """The same text in suites of which one may resume the other."""
        return self.name + self.code + version("torch")

    @property
    def identity(self) -> Identity:
        if self.parent is None:
            return Identity(self.suite)
        return Identity(self.suite, self.parent, self.change or f"+{self.name}")

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of its process. more: variables to add."""
        return paths.environment(**identity_variable(self.name, self.identity), **more)


@dataclass(frozen=True, eq=False)
class Ladder:
    """Scripts in an order, parents before children."""

    scripts: dict[str, Script]  # by name, in that order
    base: str = BASELINE  # name of the script without a parent
    replaced: dict[str, str] = field(default_factory=dict)  # names of scripts that no group has
    left_out: dict[str, str] = field(default_factory=dict)  # parents of scripts not in this part

    def __iter__(self) -> Iterator[Script]:
        return iter(self.scripts.values())

    def __len__(self):
        return len(self.scripts)

    def get(self, name: str) -> Script:
        """Return the script of that name. Raises UserError."""
        if not name:
            raise UserError("no technique is named", "give one, as in T=flash_attention")
        if name not in self.scripts:
            raise unknown(f"no technique {name!r}", name, self.scripts)
        return self.scripts[name]

    def parents(self) -> dict[str, str | None]:
        """Return the parent of each script, by name, also of those that this part leaves out."""
        return self.left_out | {script.name: script.parent for script in self}

    def lineage(self, name: str) -> list[str]:
        """Return the names from the base to a script. Raises UserError."""
        parents = self.parents()
        names = []
        while name is not None:
            if name not in parents or name in names:
                unknown = [name, *names][-1]
                raise UserError(f"{unknown} does not descend from {self.base}: see {name}")
            names.append(name)
            name = parents[name]
        return names[::-1]

    def pairs(self) -> set[frozenset[str]]:
        """Return each script with its nearest ancestor in this ladder: sets of two names."""
        parents = self.parents()
        pairs = set()
        for script in self:
            ancestor = script.parent
            for _ in parents:  # no more steps than that, if parents are in a circle
                if ancestor not in self.scripts:
                    ancestor = parents.get(ancestor)
            if ancestor in self.scripts and ancestor != script.name:
                pairs.add(frozenset((script.name, ancestor)))
        return pairs

    def part(self, names: set[str]) -> Ladder:
        """Return the Ladder of those scripts alone, in the same order."""
        scripts = {name: script for name, script in self.scripts.items() if name in names}
        return Ladder(scripts, self.base, self.replaced, self.parents())

    def repeated(self) -> Ladder:
        """Return the part that runs in every round: what is emulated or refused has only one."""
        return self.part(
            {script.name for script in self if not script.is_emulated and not script.refusal}
        )

    def group(self, word: str) -> Ladder | None:
        """Return the Ladder of a group of the repository's scripts, or None for any other word.

        ladder: the scripts at the top level, or their replacements in float16.
        beyond: the others, with those that they are compared with: their parents and the baseline.
        everything: all.
        """
        everything = self.scripts.keys() - self.replaced.keys()
        outside = self.beyond()
        parents = {self.scripts[name].parent for name in outside}
        groups = {
            "ladder": everything - outside,
            "beyond": {*outside, *parents, self.base},
            "everything": everything,
        }

        return self.part(groups[word]) if word in groups else None

    def beyond(self) -> set[str]:
        """Return the names of the scripts outside the ladder."""
        return {script.name for script in self if script.suite == "beyond"}

    def last_rung(self) -> str:
        """Return the name of the script at the end of the ladder's longest line.

        An untracked script, a user's idea, does not change it.
        """
        rungs = self.group("ladder").scripts
        in_git = tracked()
        names = [name for name in rungs if name in in_git] or rungs
        return max(names, key=lambda name: len(self.lineage(name)))


def repository(precision: str = "bfloat16") -> Ladder:
    """Return the Ladder of the repository's scripts. Raises UserError if two have the same name.

    In another precision, scripts that need bfloat16 get the diff from a rung of their line to its
    replacement: float16 has one for each rung, float32 for the rung that adds bfloat16, which
    stays, emulated.

    precision: bfloat16, float16 for a device without bfloat16, float32 for one that emulates it.
    """
    scripts = techniques()
    if precision == "bfloat16":
        return Ladder(scripts)

    another = PRECISIONS[precision]
    replaced = another.replaced
    changed = dict(scripts)
    rungs = {}  # for each script, the last one of its line that is replaced
    for name, script in scripts.items():  # parents before children
        rungs[name] = name if name in replaced else rungs.get(script.parent, BFLOAT16)
        if name in replaced.values():
            changed[name] = replace(script, suite="ladder")
        elif name == BFLOAT16 and another.emulates:
            changed[name] = replace(script, is_emulated=True)
        elif "bfloat16" in script.needs and script.parent in scripts:
            rung = scripts[rungs[name]]
            parent = changed[replaced.get(script.parent, script.parent)]
            changed[name] = variant(script, rung, scripts[replaced[rung.name]], parent, another)
    return Ladder(in_order(changed), replaced={} if another.emulates else replaced)


def techniques(root: Path = paths.ROOT) -> dict[str, Technique]:
    """Return all techniques by name, parents before children, the longest line first.

    Raises UserError if two have the same name.
    """
    scripts = {}
    files = [*sorted(root.glob("*.py")), *sorted(root.glob("beyond/**/*.py"))]
    for path in filter(paths.is_script, files):
        stat = path.stat()
        doc, code, stated = _read(path, stat.st_mtime_ns, stat.st_size)
        if "Parent" not in stated["facts"]:
            continue

        if path.stem in scripts:
            first = scripts[path.stem].path.relative_to(root)
            raise UserError(f"{first} and {path.relative_to(root)} have one name", "rename one")
        suite = "ladder" if path.parent == root else "beyond"
        scripts[path.stem] = Technique(path.stem, path, doc, code, **stated, suite=suite)
    return in_order(scripts)


def get(name: str) -> Technique:
    """Return the repository's technique of that name. Raises UserError."""
    return Ladder(techniques()).get(name)


def lineage(name: str) -> list[str]:
    """Return the names from the baseline to a technique of the repository. Raises UserError."""
    return Ladder(techniques()).lineage(name)


def identity(name: str, path: Path, parent: str | None) -> Identity:
    """Return the Identity of a script that was started without a suite.

    name: the file's stem.
    parent: the script's parent, as its docstring states it.
    """
    path = path.resolve()
    suite = "ladder" if path.parent == paths.ROOT else "beyond"
    if parent is None:
        return Identity(suite)
    if path.is_relative_to(paths.CACHE):  # a variant's name has its change
        return Identity("ablation", parent, name.removeprefix(parent))
    return Identity(suite, parent, f"+{name}")


def tracked() -> dict[str, Technique]:
    """Return the techniques whose scripts git tracks, as `techniques` does.

    An untracked script is a user's idea: tests and committed pages ignore it. Outside a git
    checkout all scripts count.
    """
    scripts = techniques()
    files = {paths.ROOT / name for name in paths.git("ls-files", "-z", "--", "*.py").split("\0")}
    in_git = {name: script for name, script in scripts.items() if script.path in files}
    return in_order(in_git) if in_git else scripts


@functools.cache
def _read(path, modified_ns, size):
    """Return a script's docstring, code and facts, read once unless the file has changed."""
    doc, code = split(path.read_text(errors="replace"))
    return doc, code, docstring_facts(doc)


def in_order(scripts: dict) -> dict:
    """Return scripts, by name, in the order of a ladder: parents before children.

    The longest line comes first, then lines by name, letters before digits. Scripts with an unknown
    parent come last.

    scripts: objects with the attributes name and parent, by name.
    """

    def descend(parent):
        children = [script for script in scripts.values() if script.parent == parent]
        lines = [[child, *descend(child.name)] for child in children]
        lines.sort(key=lambda line: (-len(line), letters_first(line[0].name)))
        return list(itertools.chain.from_iterable(lines))

    def letters_first(name):
        return [(character.isdigit(), character) for character in name]

    ordered = {script.name: script for script in descend(None)}
    return ordered | scripts
