"""Ladders: scripts in an order, each with its name, its parent and the command that starts it.

A technique is a script, at the top level or in beyond/, whose docstring has a line `Parent:`. There
is no other list of them: a copy of a script under a new name is a technique too.

Four makers give one type: `repository`, `in_float16` (for a device without bfloat16),
`variants.ablation`, and the switches on a user's script. Nobody asks a Ladder who made it.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from Utils.base import paths
from Utils.base.errors import UserError
from Utils.scripts import diffs
from Utils.scripts.identity import Identity, identity_variable

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
FACTS = ("Parent", "Needs", "Gains", "Costs", "See")
PARITIES = ("another optimizer", "approximate")  # the loss of other updates, and of a few bits


def facts(doc):
    """Return what a docstring states of a Technique: parent, needs and facts."""
    lines = re.findall(rf"^({'|'.join(FACTS)}): +(.*(?:\n +\S.*)*)", doc, re.MULTILINE)
    texts = {name: " ".join(text.split()) for name, text in lines}
    parent = texts.get("Parent", "none")
    listed = re.match(r"[^;:]*", texts.get("Needs", "nothing"))[0]
    words = (word.strip() for word in listed.split(","))
    needs = tuple(word for word in words if word not in ("", "nothing"))
    return {"parent": None if parent == "none" else parent, "needs": needs, "facts": texts}


def split(source):
    """Return (docstring, code after it) of a script."""
    doc, _, code = source.removeprefix('"""').partition('"""')
    return doc, code


@dataclass(frozen=True)
class Technique:
    """A script of a ladder.

    name: the file's stem, the label of its results. code: all after the docstring. parent: name of
    the script that it extends, None for a base. needs: names of checks that a run has to pass, in
    order; see `device.capabilities`. facts: the text of each of FACTS in the docstring, on one
    line. suite, change: of its Identity; by default it adds itself. note: on all its runs. misfit:
    why its diff has no place in float16, or "".
    """

    name: str
    path: Path
    doc: str
    code: str
    parent: str | None
    needs: tuple
    facts: dict
    suite: str = "ladder"
    change: str = ""
    note: str = ""
    misfit: str = ""

    python = sys.executable
    refusal = ""  # no script of ours is refused before it has run

    @property
    def headline(self):
        return self.doc.split("\n", 1)[0]

    @property
    def stated_parity(self):
        """The first words of its Costs, if they are one of PARITIES, else ""."""
        costs = self.facts.get("Costs", "")
        return next((parity for parity in PARITIES if costs.startswith(parity)), "")

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

    @property
    def identity(self):
        if self.parent is None:
            return Identity(self.suite)
        return Identity(self.suite, self.parent, self.change or f"+{self.name}")

    def environment(self, **more):
        """Return the environment of its process, a dict."""
        return paths.environment(**identity_variable(self), **more)


@dataclass(frozen=True, eq=False)
class Ladder:
    """Scripts in an order, parents before children.

    scripts: by name, in that order. base: name of the one without a parent. replaced: names of
    scripts that others take the place of, which no group has. left_out: parents by name of scripts
    that a part of a ladder does not have.
    """

    scripts: dict
    base: str = BASELINE
    replaced: dict = field(default_factory=dict)
    left_out: dict = field(default_factory=dict)

    def __iter__(self):
        return iter(self.scripts.values())

    def __len__(self):
        return len(self.scripts)

    def get(self, name):
        """Return the script of that name. Raises UserError."""
        if name not in self.scripts:
            raise UserError(f"no technique {name!r}", f"choose {', '.join(self.scripts)}")
        return self.scripts[name]

    def parents(self):
        """Return the parent of each script, also of those that this part leaves out, by name."""
        return self.left_out | {script.name: script.parent for script in self}

    def line(self, name):
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

    def pairs(self):
        """Return each script with its nearest ancestor in this ladder: sets of two names."""
        parents = self.parents()
        pairs = set()
        for script in self:
            passed = {script.name}
            ancestor = script.parent
            while ancestor in parents and ancestor not in {*self.scripts, *passed}:
                passed.add(ancestor)
                ancestor = parents[ancestor]
            if ancestor in self.scripts and ancestor not in passed:
                pairs.add(frozenset((script.name, ancestor)))
        return pairs

    def part(self, names):
        """Return the Ladder of those scripts alone, in the same order."""
        scripts = {name: script for name, script in self.scripts.items() if name in names}
        return Ladder(scripts, self.base, self.replaced, self.parents())

    def group(self, word):
        """Return the Ladder of a group of the repository's scripts, or None for any other word.

        ladder: the top level, or in float16 what takes its place. beyond: all others, with their
        parents and the baseline, over which their ratios are taken. everything: all.
        """
        everything = self.scripts.keys() - self.replaced.keys()
        outside = self.beyond()
        if word == "ladder":
            return self.part(everything - outside)
        if word == "beyond":
            parents = {self.scripts[name].parent for name in outside}
            return self.part({*outside, *parents, self.base})
        if word == "everything":
            return self.part(everything)
        return None

    def beyond(self):
        """Return the names of the scripts outside the ladder, a set."""
        return {script.name for script in self if script.suite == "beyond"}

    def last_rung(self):
        """Return the name of the script at the end of the ladder's longest line.

        An untracked script, someone's own idea, does not move it.
        """
        rungs = self.group("ladder").scripts
        ours = rungs.keys() & tracked().keys()
        names = [name for name in rungs if name in ours] or rungs
        return max(names, key=lambda name: len(self.line(name)))


def repository(bfloat16=True):
    """Return the Ladder of the repository's scripts, as a device with or without bfloat16 runs it.

    Raises UserError if two scripts have one name.
    """
    ladder = Ladder(techniques())
    return ladder if bfloat16 else in_float16(ladder)


def techniques(root=paths.ROOT):
    """Return all techniques by name, parents before children, the longest line first.

    Raises UserError if two have one name.
    """
    scripts = {}
    for path in [*sorted(root.glob("*.py")), *sorted(root.glob("beyond/**/*.py"))]:
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


def get(name):
    """Return the repository's technique of that name. Raises UserError."""
    return Ladder(techniques()).get(name)


def line(name):
    """Return the names from the baseline to a technique of the repository. Raises UserError."""
    return Ladder(techniques()).line(name)


def identity(name, path, parent):
    """Return the Identity of a script that was started by itself.

    name: the file's stem. parent: as its docstring states it.
    """
    path = path.resolve()
    suite = "ladder" if path.parent == paths.ROOT else "beyond"
    if parent is None:
        return Identity(suite)
    if path.is_relative_to(paths.CACHE):  # a variant's name has its change
        return Identity("ablation", parent, name.removeprefix(parent))
    return Identity(suite, parent, f"+{name}")


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
    return in_order(in_git) if in_git else scripts


@functools.cache
def _read(path, modified_ns, size):
    """Return a script's docstring, code and facts, read once unless the file has changed."""
    doc, code = split(path.read_text(errors="replace"))
    return doc, code, facts(doc)


def in_order(scripts):
    """Return scripts, by name, in the order of a ladder: parents before children.

    The longest line comes first, then lines by name, letters before digits; scripts with an unknown
    parent come last. scripts: a dict of objects with the attributes name and parent.
    """

    def descend(parent):
        children = [script for script in scripts.values() if script.parent == parent]
        lines = [[child, *descend(child.name)] for child in children]
        lines.sort(key=lambda line: (-len(line), [(c.isdigit(), c) for c in line[0].name]))
        return list(itertools.chain.from_iterable(lines))

    ordered = {script.name: script for script in descend(None)}
    return ordered | scripts


def in_float16(ladder):
    """Return a Ladder with the diffs of scripts that need bfloat16 merged onto the float16 line.

    The scripts of FLOAT16 take the place of those of the ladder that need bfloat16.
    """
    scripts = ladder.scripts
    changed = dict(scripts)
    for name, script in scripts.items():
        if name in FLOAT16:
            instead = scripts[FLOAT16[name]]
            changed[name] = replace(
                script,
                code=instead.code,
                parent=instead.parent,
                needs=instead.needs,
                facts=instead.facts,
                note=NOTE_IN_FLOAT16,
            )
        elif name in FLOAT16.values():
            changed[name] = replace(script, suite="ladder")
        elif "bfloat16" in script.needs and script.parent in scripts:
            before = scripts[script.parent]
            parent = changed[script.parent]
            code = diffs.merge(parent.code, before.code, script.code)
            added = [need for need in script.needs if need not in before.needs]
            changed[name] = replace(
                script,
                code=code or script.code,
                parent=FLOAT16.get(before.name, before.name),
                needs=(*parent.needs, *added),
                misfit=parent.misfit or _misfit(parent, before, script, code),
                note=NOTE_IN_FLOAT16,
            )
    return Ladder(in_order(changed), ladder.base, FLOAT16)


def _misfit(parent, before, script, code):
    """Return why a script's diff has no place in float16, or "". code: it merged, or None."""
    _, _, reason = script.facts["Needs"].partition("; ")
    if reason.startswith("in float16"):
        return f"needs bfloat16: {reason}"
    theirs, old, new = (
        [line.strip() for line in s.code.splitlines()] for s in (parent, before, script)
    )
    added = [line for line in new if line not in old]
    lines = [line for line in added if UNFIT.search(line.partition("#")[0])]
    if not lines and code is None:
        lines = [line for line in old if line not in theirs and line not in new] or added
    return f"needs bfloat16: in float16 its diff has no place at {lines[0]!r}" if lines else ""


def of_rows(identities):
    """Return the Ladder of the repository by which rows were measured.

    identities: of each of their techniques, by name. In float16 the scripts of FLOAT16 are of the
    ladder, and what needs bfloat16 has them as parents.
    """
    ladder = repository()
    stated = ladder.parents()
    for name, identity in identities.items():
        is_rung = name in FLOAT16.values() and identity.suite == "ladder"
        if is_rung or identity.parent == FLOAT16.get(stated.get(name), name):
            return in_float16(ladder)
    return ladder
