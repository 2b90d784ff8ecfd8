"""Rows of files from before the columns suite, parent and change: filled in from their names.

Only here is a technique's name taken apart, and a note read.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from Utils.scripts import ladder, variants
from Utils.scripts.identity import Identity
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


def fill(rows: "pd.DataFrame", path: Path) -> "pd.DataFrame":
    """Return rows of an old file with the columns ADDED, as categories.

    path: their file, named in a line on stderr if scripts are unknown.
    """
    import pandas as pd  # noqa: PLC0415  (a training script does not need it)

    runs = rows[[*READ]].drop_duplicates()
    runs = runs.assign(code=runs.commit.astype(str).str.removesuffix("-dirty"))
    ours = runs[runs.base == BASELINE]
    ladders_by_device = {
        device: ladder.repository(_precision(runs_of_device))
        for device, runs_of_device in ours.groupby("device", observed=True)
    }

    identities = []
    unknown = []
    for (device, base, *_), group in runs.groupby(VERSION, observed=True):
        timed_names = group.technique[group.status == "ok"].unique()
        for key in group[[*KEY]].drop_duplicates().itertuples(index=False):
            if base == BASELINE:
                identity = _of_ours(key.technique, ladders_by_device[device])
            else:
                identity = _of_own(key.technique, base, timed_names)
            if identity is None:
                unknown.append(key.technique)
                identity = Identity("ladder" if base == BASELINE else "own")
            identities.append(key._asdict() | identity.place)

    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        print(f"{path}: no script here is named {names}: shown without a parent", file=sys.stderr)

    added = rows[[*KEY]].astype(str).merge(pd.DataFrame(identities), how="left")
    for column in ADDED:
        rows[column] = pd.Categorical(added[column], ordered=True)
    return rows


def _precision(rows):
    """Return the precision of the ladder that rows are of: float16 if only that was timed."""
    timed = rows[rows.status == "ok"]
    if timed.note.astype(str).str.contains(PRECISIONS["float16"].note, regex=False).any():
        return "float16"
    in_float16 = timed.technique.isin(FLOAT16.values()).any()
    in_bfloat16 = timed.technique.isin(FLOAT16).any()
    return "float16" if in_float16 and not in_bfloat16 else "bfloat16"


def _of_ours(name, repository):
    """Return the Identity of a script or variant of the repository, None for an unknown name."""
    if name in repository.scripts:
        return repository.scripts[name].identity

    variant = variants.parse(name, repository)
    if variant is None:
        return None
    return Identity("ablation", variant.script, name.removeprefix(variant.script))


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
