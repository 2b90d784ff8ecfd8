"""Rows of files from before the columns suite, parent and change: filled in from their names.

Only here is a technique's name taken apart, and a note read.
"""

import re
import sys

from Utils.scripts import ladder
from Utils.scripts.identity import Identity, changes
from Utils.scripts.ladder import BASELINE, FLOAT16, NOTE_IN_FLOAT16

ADDED = ("suite", "parent", "change")
KEY = ("device", "base", "torch", "commit", "technique")  # rows of one KEY have one Identity
READ = (*KEY, "status", "note")
VERSION = ["device", "base", "torch", "code"]  # a user's script may change from run to run
# Switches on a user's script, in the order in which a name of that time has them.
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


def identities(runs, path):
    """Return the Identity of each run's technique by KEY.

    runs: a DataFrame with the columns READ, a row a run or step. path: of their file, for one line
    on stderr that names the scripts that are unknown.
    """
    ours = runs[runs.base == BASELINE]
    scripts_on = {
        device: ladder.repository(_has_bfloat16(of_device)).scripts
        for device, of_device in ours.groupby("device", observed=True)
    }
    identities_by_key = {}
    unknown = []
    runs = runs.assign(code=runs.commit.astype(str).str.removesuffix("-dirty"))
    for (device, base, *_), group in runs.groupby(VERSION, observed=True):
        timed_names = group.technique[group.status == "ok"].unique()
        for key in group[[*KEY]].drop_duplicates().itertuples(index=False):
            if base == BASELINE:
                identity = _of_ours(key.technique, scripts_on[device])
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


def fill(rows, path):
    """Return rows of an old file, a DataFrame, with the columns ADDED, as categories."""
    import numpy as np  # these two here, because a training script does not need them
    import pandas as pd

    by_key = identities(rows[[*READ]].drop_duplicates(), path)
    group_of_row = rows.groupby([*KEY], observed=True).ngroup()
    first_rows = rows[[*KEY]].assign(group=group_of_row).drop_duplicates("group")
    groups = first_rows.sort_values("group")[[*KEY]].itertuples(index=False, name=None)
    in_order = [by_key[key] for key in groups]
    for column in ADDED:
        texts = np.array([getattr(identity, column) for identity in in_order], dtype=object)
        rows[column] = pd.Categorical(texts[group_of_row], ordered=True)
    return rows


def fill_texts(read_rows, path):
    """Yield rows of an old file with the columns ADDED.

    read_rows: function that returns the rows, dicts of strings; it is called twice.
    """
    import pandas as pd  # here, because a training script does not need it

    runs = dict.fromkeys(_values(row, READ) for row in read_rows())
    by_key = identities(pd.DataFrame([*runs], columns=READ), path)
    for row in read_rows():
        yield row | vars(by_key[_values(row, KEY)])


def _values(row, columns):
    """Return values of a row, a tuple; a row that is cut off may lack some."""
    return tuple(row[name] or "" for name in columns)


def _has_bfloat16(rows):
    """Return whether rows are of a device with bfloat16: not if only float16 was timed."""
    timed = rows[rows.status == "ok"]
    if timed.note.astype(str).str.contains(NOTE_IN_FLOAT16, regex=False).any():
        return False
    names = {*timed.technique}
    return not names & {*FLOAT16.values()} or bool(names & FLOAT16.keys())


def _of_ours(name, scripts):
    """Return the Identity of a script or variant of ours, None for an unknown name."""
    if name in scripts:
        return scripts[name].identity
    variant = re.fullmatch(r"(\w+)((?:\+\w+)+|(?:-\w+)+)", name)
    if variant is None:
        return None
    script, change = variant.groups()
    names = [script, *(technique for _, technique in changes(change))]
    return Identity("ablation", script, change) if {*names} <= scripts.keys() else None


def _of_own(name, base, timed_names):
    """Return the Identity of a user's script with switches, by the order of their names."""
    if name == base:
        return Identity("own")
    script, *switches = name.split("+")
    if script != base or not switches:
        return None

    *before, last = switches
    replaced = REPLACES.get(last, set())
    is_rung = last in RUNGS
    parent = "+".join([script, *before])
    change = f"+{last}"
    if not is_rung:  # it may take the place of a rung, if that was measured
        with_replaced = [rung for rung in RUNGS if rung in {*before, *replaced}]
        with_replaced += [switch for switch in before if switch not in RUNGS]
        candidate = "+".join([script, *with_replaced])
        if replaced and candidate in timed_names:
            parent = candidate
            change += "".join(f"-{technique}" for technique in replaced)
    took_effect = {technique for other in timed_names for technique in other.split("+")[1:][-1:]}
    earlier = RUNGS[: RUNGS.index(last)] if is_rung else RUNGS
    left_out = {"8bit_optimizer", *replaced}
    in_line = [t for t in earlier if t in took_effect and t not in left_out]
    if before == in_line:
        return Identity("own", parent, change)
    return _of_own_ablation(script, switches, timed_names)


def _of_own_ablation(script, switches, timed_names):
    """Return the Identity of a script with one switch alone, or with all but one."""
    if len(switches) == 1:
        return Identity("ablation", script, f"+{switches[0]}")
    wholes = [name.split("+")[1:] for name in timed_names if name.split("+")[0] == script]
    for whole in sorted(wholes, key=len, reverse=True):
        missing = [technique for technique in whole if technique not in switches]
        if len(missing) == 1 and {*switches} < {*whole}:
            return Identity("ablation", "+".join([script, *whole]), f"-{missing[0]}")
    return Identity("ablation", "+".join([script, *switches[:-1]]), f"+{switches[-1]}")
