"""Ablation: the speedup of each technique alone on the baseline, in the ladder, and added last to
the whole, from the same rounds. Rows bear the names of `variants`."""

from functools import partial

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.results import selection
from Utils.scripts import ladder, own_names, variants

WAYS = {  # columns of `credits`, and their titles
    "alone": "alone, on the baseline",
    "ladder": "in the ladder, on its parent",
    "last": "added last, to the whole without it",
}


def rungs():
    """Return the names of the ladder's tracked scripts; T= ablates another."""
    tracked = ladder.tracked()
    return [technique.name for technique in ladder.group("ladder") if technique.name in tracked]


def last_rung():
    """Return the end of the ladder's longest line."""
    return max(rungs(), key=lambda name: len(ladder.line(name)))


def members(whole):
    """Return the techniques to ablate: the line of `whole`; of the last rung, the whole ladder."""
    if of_base := own_names.split(whole):
        return of_base[1]
    line = ladder.line(whole)[1:]
    if whole == last_rung():
        line += rungs()
    return [name for name in dict.fromkeys(line) if name != ladder.BASELINE]


def names_of(technique, whole):
    """Return the pairs whose ratio is the technique's speedup, {way: (without it, with it)}, names
    of scripts or variants, of those ways that have one."""
    if of_base := own_names.split(whole):
        base, names = of_base
        earlier = own_names.ORDER[: own_names.ORDER.index(technique)]
        before = {*names} & {*earlier} - own_names.REPLACES.get(technique, set())
        name_of = partial(own_names.name_of, base)
        pairs = {"alone": (base, name_of({technique}))}
        pairs["ladder"] = (name_of(before), name_of(before | {technique}))
        if technique in names:
            pairs["last"] = (name_of({*names} - {technique}), name_of({*names}))
        return pairs
    parent = ladder.get(technique).parent
    pairs = {"ladder": (parent, technique)}
    if variants.together([technique]):
        alone = technique if parent == ladder.BASELINE else f"{ladder.BASELINE}+{technique}"
        pairs["alone"] = (ladder.BASELINE, alone)
    if technique == whole:
        pairs["last"] = pairs["ladder"]
    elif technique in ladder.line(whole) and variants.without([technique], whole):
        pairs["last"] = (f"{whole}-{technique}", whole)
    return {way: pairs[way] for way in WAYS if way in pairs}


def plan(whole):
    """Return the names of all scripts and variants to run, each once."""
    of_base = own_names.split(whole)
    names = [of_base[0] if of_base else ladder.BASELINE]
    for technique in members(whole):
        for pair in names_of(technique, whole).values():
            names += pair
    return list(dict.fromkeys(names))


@selection.as_run
def whole_of(rows):
    """Return the script that the rows ablate, of a base its longest; None without variants."""
    base = selection.baseline(rows)
    if base != ladder.BASELINE:
        rows = rows[rows.status == "ok"]
        alone = selection.variants_in(rows)
        line = {*own_names.LADDER} - {"8bit_optimizer"}
        runs = rows[~rows.technique.isin(alone)].technique.unique()
        runs = [name for name in runs if {*own_names.split(name)[1]} <= line]
        return max(runs, key=lambda name: name.count("+"), default=base) if alone else None
    names = rows.sort_values("run_id").technique.unique()
    parsed = [parts for name in names if (parts := variants.parse(name))]
    wholes = [variant.script for variant in parsed if variant.sign == "-"]
    return [last_rung(), *wholes][-1] if parsed else None


@selection.as_run
def credits(rows, whole):
    """Return a DataFrame by technique: its Ratio in each of WAYS, corrected by Holm over all; and
    `says`, a remark where the first and the last gain differ significantly, or "".
    rows: selected rows, variants included."""
    medians = intervals.step_ms(selection.timed(rows))
    ratios = {}
    says = {}
    for name in members(whole):
        logs = {
            way: np.log(medians[without] / medians[with_it])
            for way, (without, with_it) in names_of(name, whole).items()
            if without in medians and with_it in medians
        }
        of_name = {way: intervals.ratio_of(values) for way, values in logs.items()}
        ratios[name] = {way: of_name.get(way, intervals.Ratio()) for way in WAYS}
        says[name] = ""
        if {"alone", "last"} <= logs.keys():
            verdict = intervals.ratio_of(logs["alone"] - logs["last"]).verdict
            if verdict in (intervals.Ratio.above, intervals.Ratio.below):
                gains = "less" if verdict == intervals.Ratio.above else "more"
                says[name] = (
                    f"{of_name['alone'].text} alone and {of_name['last'].text} added last to "
                    f"{whole}; it gains {gains} in combination"
                )
    lines = pd.DataFrame.from_dict(ratios, "index").rename_axis("technique")
    lines[:] = np.reshape(intervals.holm(lines.to_numpy().ravel()), lines.shape)
    return lines.assign(says=pd.Series(says))


def table(lines, in_file=False):
    """Return `credits` as a table with its remarks, a string. in_file: as Markdown."""
    shown = {"technique": list(lines.index)}
    for way, title in WAYS.items():
        shown[title] = [result_tables.bold(ratio) for ratio in lines[way]]
    says = [f"- {name}: {line.says}" for name, line in lines.iterrows() if line.says]
    return text_tables.page([shown, "\n".join(says)], in_file)
