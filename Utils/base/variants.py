"""Scripts that nobody wrote: techniques by themselves, and the whole without some.

A technique is a diff, its script less its parent, and diffs can be merged:

- `no_optimization+flash_attention` is the baseline with flash_attention's diff and no other;
- `fused_optimizer-flash_attention` is fused_optimizer with that diff taken back.

Several can be named, as in `fused_optimizer-tensorFloat32-flash_attention`; their order is the
ladder's, whichever way they are written.

`git merge-file` does it, one token a line, since two techniques may change different words of one
line. git also calls it a conflict where two changes merely touch; those are both made. What is left
are changes of the same words: there one technique builds on the other, and both are named. So they
are where a technique's `Needs:` names another.
"""

import re
from contextlib import suppress
from itertools import combinations

from Utils.base import ladder, merge, paths
from Utils.base.errors import UserError
from Utils.base.ladder import BASELINE, Technique

FOLDER = paths.CACHE / "variants"
DOC = """{headline}

Made by merging diffs, and made anew each time: change the scripts that it comes from.

Parent: {whole}
Needs:  {needs}
"""


def parse(name):
    """(whole, sign, techniques in ladder order) of a variant's name, or None where it is no such
    name."""
    parts = re.fullmatch(r"(\w+)((?:\+\w+)+|(?:-\w+)+)", name)
    if parts is None:
        return None
    sign, known = parts[2][0], ladder.techniques()
    names = parts[2][1:].split(sign)
    if not {parts[1], *names} <= {*known} or len({*names}) < len(names):
        return None
    if sign == "+" and BASELINE in names:
        return None
    return parts[1], sign, [name for name in known if name in names]


def parts(name):
    """The techniques whose diffs make that script or variant of the baseline, a set of names; None
    where there is no such script."""
    found = parse(name)
    try:
        if found is None:
            return frozenset(ladder.line(name)[1:])
        whole, sign, names = found
        line = frozenset(ladder.line(whole)[1:])
        return line | {*names} if sign == "+" else line - {*names}
    except UserError:
        return None


def find(name):
    """The technique of that name, or the variant, whose script is written to a folder of scratch.
    Raises UserError, which says so where a diff builds on another."""
    if parse(name) is None:
        return ladder.get(name)
    whole, sign, names = parse(name)
    name, several = sign.join([whole, *names]), " and ".join(names)
    if sign == "+":
        headline = f"{several} alone: the baseline with {_its(names)} and no other."
        if whole != BASELINE:
            raise UserError(f"{name}: a technique alone is {BASELINE}+{several}")
        code = together(names)
        problem = "" if code else _why_not_together(names)
    else:
        headline = f"{whole} without {several}: {_its(names)} {_is(names)} taken back."
        code = without(names, whole)
        problem = "" if code else _why_not_without(names, whole)
    if code is None:
        raise UserError(f"{name} cannot be made: {problem}")
    needs = ", ".join(_composed_needs(whole, sign, names)) or "nothing"
    doc = DOC.format(headline=headline, whole=whole, needs=needs)
    path, text = FOLDER / f"{name}.py", f'"""{doc}"""{code}'
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; CACHE_DIR names another place") from None
    return Technique(name, path, doc, code, ladder.facts(doc))


def made_of(names):
    """The script, or else the variant made by the fewest merges, that is the baseline with the
    diffs of those techniques and no other. Raises UserError where there is none."""
    known = ladder.techniques()
    names = [name for name in known if name in names]
    ways = [(len(names), "+".join([BASELINE, *names]))]
    for whole in known:
        line = ladder.line(whole, known)[1:]
        if {*names} <= {*line}:
            less = [name for name in line if name not in names]
            ways.append((len(less), "-".join([whole, *less])))
    for _, way in sorted(ways, key=lambda way: way[0]):
        with suppress(UserError):
            return find(way)
    return find(ways[0][1])  # which says why not


def alone(name, along=()):
    """The code of the baseline with the diffs of those in `along` and then of that technique. None
    where one does not apply."""
    return together([*along, name])


def together(names):
    """The code of the baseline with the diffs of those techniques, one after the other. None where
    one does not apply."""
    known = ladder.techniques()
    code = known[BASELINE].code
    for n, technique in enumerate(names):
        if not _declared(technique, known) <= {*names[:n]}:
            return None
        code = code and merge.merge(
            code, known[known[technique].parent].code, known[technique].code
        )
    return code


def without(names, whole):
    """The code of `whole` with the diff of one technique from which it descends taken back, or of
    several, the last of the ladder first. None where another one builds on it. Raises UserError."""
    names, known = [names] if isinstance(names, str) else names, ladder.techniques()
    for name in names:
        if name not in ladder.line(whole, known)[1:]:
            raise UserError(f"{whole} does not descend from {name}")
    left = [other for other in ladder.line(whole, known)[1:] if other not in names]
    if any(_declared(other, known) & {*names} for other in left):
        return None
    code = known[whole].code
    for name in reversed(names):
        code = code and merge.merge(code, known[name].code, known[known[name].parent].code)
    return code


def _declared(name, known):
    """Return the techniques among a technique's needs, without which it means nothing: a set."""
    return {*known[name].needs} & known.keys() - {name}


def _composed_needs(whole, sign, names):
    """Return the needs of a variant, a list: each technique adds what its parent does not need,
    and takes away what only its parent needs; with the sign - the other way around."""
    known = ladder.techniques()
    needs = list(known[whole].needs)
    for name in names:
        own, inherited = known[name].needs, known[known[name].parent].needs
        added, removed = (own, inherited) if sign == "+" else (inherited, own)
        needs = [need for need in needs if need in added or need not in removed]
        needs += [need for need in added if need not in removed and need not in needs]
    return needs


def needs(name):
    """The fewest techniques that it takes, before its own diff, for that to apply."""
    between = ladder.line(name)[1:-1]
    for n in range(len(between) + 1):
        for along in combinations(between, n):
            if alone(name, along) is not None:
                return list(along)


def builds_on(name, whole):
    """The first technique on the way from `name` to `whole` whose diff touches the same words, or
    None."""
    line = ladder.line(whole)
    for child in line[line.index(name) + 1 :]:
        if without(name, child) is None:
            return child


def _why_not_together(names):
    """Which of the techniques does not apply to the baseline with those before it, and why."""
    for n, name in enumerate(names):
        if together(names[: n + 1]) is None:
            lacking = [other for other in needs(name) or () if other not in names]
            subject = "it" if len(names) == 1 else name
            if lacking:
                return f"{subject} needs {' and '.join(lacking)}"
            return f"{name} changes the same words as {' or '.join(names[:n])}"


def _why_not_without(names, whole):
    """What keeps one of the techniques from being taken back once those after it are."""
    for n in range(len(names) - 1, -1, -1):
        if without(names[n:], whole) is None:
            child = builds_on(names[n], whole) or "what comes after it"
            return f"{child} builds on {'it' if len(names) == 1 else names[n]}"


def _its(names):
    return "its diff" if len(names) == 1 else "their diffs"


def _is(names):
    return "is" if len(names) == 1 else "are"
