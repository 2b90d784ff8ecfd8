"""Rows of files from before the columns suite, parent and change: filled in from their names.

Only here is a technique's name taken apart, and a note read.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from Utils.scripts import ladder
from Utils.scripts.identity import Identity, changes
from Utils.scripts.ladder import BASELINE, FLOAT16, PRECISIONS

if TYPE_CHECKING:
    import pandas as pd  # for annotations alone: a training script does not need it

ADDED = ("suite", "parent", "change")
KEY = ("device", "base", "torch", "commit", "technique")  # rows of one KEY have one Identity
READ = (*KEY, "status", "note")
VERSION = ["device", "base", "torch", "code"]  # a user's script may change from run to run
# Switches on a user's script, in their order in a name of that time.
RUNGS = (
    "tensorFloat32",
    "brainFloat16",
    "float16",
    "torch_compile",
    "flash_attention",
    "fused_optimizer",
    "8bit_optimizer",
)
REPLACES = {
    "float16": {"brainFloat16"},
    "8bit_optimizer": {"fused_optimizer"},
    "cuda_graphs": {"torch_compile"},
}


def identities(runs: "pd.DataFrame", path: Path) -> dict[tuple, Identity]:
    """Return the Identity of each run's technique by KEY.

    runs: with the columns READ, a row a run or step.
    path: their file, named in a line on stderr if scripts are unknown.
    """
    ours = runs[runs.base == BASELINE]
    scripts_by_device = {
        device: ladder.repository(_precision(rows)).scripts
        for device, rows in ours.groupby("device", observed=True)
    }

    identities_by_key = {}
    unknown = []
    runs = runs.assign(code=runs.commit.astype(str).str.removesuffix("-dirty"))
    for (device, base, *_), group in runs.groupby(VERSION, observed=True):
        timed_names = group.technique[group.status == "ok"].unique()
        for key in group[[*KEY]].drop_duplicates().itertuples(index=False):
            if base == BASELINE:
                identity = _of_ours(key.technique, scripts_by_device[device])
            else:
                identity = _of_own(key.technique, base, timed_names)
            if identity is None:
                unknown.append(key.technique)
                identity = Identity("ladder" if base == BASELINE else "own")
            identities_by_key[tuple(key)] = identity

    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        print(f"{path}: no script here is named {names}: shown without a parent", file=sys.stderr)
    return identities_by_key


def fill(rows: "pd.DataFrame", path: Path) -> "pd.DataFrame":
    """Return rows of an old file with the columns ADDED, as categories."""
    import numpy as np  # noqa: PLC0415  (a training script does not need it)
    import pandas as pd  # noqa: PLC0415  (it costs a second)

    by_key = identities(rows[[*READ]].drop_duplicates(), path)
    group_of_row = rows.groupby([*KEY], observed=True).ngroup()
    first_rows = rows[[*KEY]].assign(group=group_of_row).drop_duplicates("group")
    keys = first_rows.sort_values("group")[[*KEY]].itertuples(index=False, name=None)
    identities_of_groups = [by_key[key] for key in keys]

    for column in ADDED:
        values = [getattr(identity, column) for identity in identities_of_groups]
        texts = np.array(values, dtype=object)
        rows[column] = pd.Categorical(texts[group_of_row], ordered=True)
    return rows


def fill_texts(read_rows: Callable[[], Iterable[dict]], path: Path) -> Iterator[dict]:
    """Yield rows of an old file with the columns ADDED.

    read_rows: returns the rows, dicts of strings; it is called twice.
    """
    import pandas as pd  # noqa: PLC0415  (it costs a second)

    runs = dict.fromkeys(_values(row, READ) for row in read_rows())
    by_key = identities(pd.DataFrame([*runs], columns=READ), path)
    for row in read_rows():
        yield row | vars(by_key[_values(row, KEY)])


def _values(row, columns):
    """Return values of a row, a tuple; a row that is cut off may lack some."""
    return tuple(row[name] or "" for name in columns)


def _precision(rows):
    """Return the precision of the ladder that rows are of: float16 if only that was timed."""
    timed = rows[rows.status == "ok"]
    if timed.note.astype(str).str.contains(PRECISIONS["float16"].note, regex=False).any():
        return "float16"
    names = {*timed.technique}
    only_float16 = names.isdisjoint(FLOAT16) and not names.isdisjoint(FLOAT16.values())
    return "float16" if only_float16 else "bfloat16"


def _of_ours(name, scripts):
    """Return the Identity of a script or variant of the repository, None for an unknown name."""
    if name in scripts:
        return scripts[name].identity

    variant = re.fullmatch(r"(\w+)((?:\+\w+)+|(?:-\w+)+)", name)
    if variant is None:
        return None
    script, change = variant.groups()
    names = {script} | {technique for _, technique in changes(change)}
    return Identity("ablation", script, change) if names <= scripts.keys() else None


def _of_own(name, base, timed_names):
    """Return the Identity of a user's script with switches, by the order of their names."""
    if name == base:
        return Identity("own")
    script, *switches = name.split("+")
    if script != base or not switches:
        return None

    # The last switch is a step of the ladder if all effective rungs come before it.
    *before, last = switches
    replaced = REPLACES.get(last, set())
    left_out = {"8bit_optimizer", *replaced}
    effective = {timed.rpartition("+")[2] for timed in timed_names if "+" in timed} - left_out
    earlier_rungs = RUNGS[: RUNGS.index(last)] if last in RUNGS else RUNGS
    if before != [rung for rung in earlier_rungs if rung in effective]:
        return _of_own_ablation(script, switches, timed_names)

    # One that is not a rung may replace one, if that was measured.
    parent = "+".join([script, *before])
    change = f"+{last}"
    if replaced and last not in RUNGS:
        with_replaced = [rung for rung in RUNGS if rung in {*before, *replaced}]
        candidate = "+".join([script, *with_replaced])
        if candidate in timed_names:
            parent = candidate
            change += "".join(f"-{technique}" for technique in replaced)
    return Identity("own", parent, change)


def _of_own_ablation(script, switches, timed_names):
    """Return the Identity of a script with one switch alone, or with all but one."""
    if len(switches) == 1:
        return Identity("ablation", script, f"+{switches[0]}")

    most_switches_first = sorted(timed_names, key=lambda name: -name.count("+"))
    for name in most_switches_first:
        base, *more_switches = name.split("+")
        missing = {*more_switches}.difference(switches)
        if base == script and len(missing) == 1 and {*switches} < {*more_switches}:
            return Identity("ablation", name, f"-{missing.pop()}")
    return Identity("ablation", "+".join([script, *switches[:-1]]), f"+{switches[-1]}")
