"""Ablation: the speedup of each technique alone on the baseline, in the ladder, and added last to
the whole, from the same rounds.
"""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.results import selection

WAYS = {  # columns of `credits`, and their titles
    "alone": "alone, on the baseline",
    "ladder": "in the ladder, on its parent",
    "last": "added last, to the whole without it",
}


def whole_of(chosen):
    """Return the script that a study's rows ablate, or None without rows of an ablation."""
    variants = chosen.names("ablation")
    if not variants:
        return None
    newest_first = chosen.all_rows[chosen.all_rows.technique.isin(variants)]
    newest_first = newest_first.sort_values("run_id", ascending=False).technique.unique()
    wholes = [chosen.parent(name) for name in newest_first if chosen.leaves_out(name)]
    return wholes[0] if wholes else _last_rung(chosen)


def _last_rung(chosen):
    """Return the end of the ladder's longest line.

    For ours only tracked scripts count, measured or not; of a user's script, those with timings.
    """
    if chosen.is_ours:
        return chosen.ladder.last_rung()
    timed = {*chosen.all_rows.technique[chosen.all_rows.status == "ok"]}
    rungs = (chosen.names("own") - chosen.beyond()) & timed
    names = [name for name in chosen.order if name in rungs]
    return max(names, key=lambda name: len(chosen.line(name)), default=chosen.base)


def pairs(chosen, whole):
    """Return the pairs of scripts whose ratio is a technique's speedup, those that have rows.

    {technique: {way: (without it, with it)}}, techniques in the order of the ladder, ways as in
    WAYS. With the ablation of the last rung come all scripts of the ladder, with another its line.
    """
    rungs = chosen.names("ladder") if whole == _last_rung(chosen) else set()
    scripts = {*chosen.line(whole), *rungs}
    members = set().union(*(chosen.techniques(name) for name in scripts))
    of_whole = chosen.techniques(whole)
    # Of equal sets the first counts, scripts before variants.
    name_of_set = {chosen.techniques(name): name for name in reversed(chosen.order)}

    pairs_by_technique = {}
    for name in chosen.order:
        change = chosen.change(name)
        for _, technique in change:
            if technique in members:
                ways = pairs_by_technique.setdefault(technique, {})
                if name in scripts and len(change) == 1:
                    ways["ladder"] = (chosen.parent(name), name)
    for technique, ways in pairs_by_technique.items():
        alone = name_of_set.get(frozenset({technique}))
        without = name_of_set.get(of_whole - {technique})
        if alone:
            ways["alone"] = (chosen.base, alone)
        if without and technique in of_whole:
            ways["last"] = (without, whole)
    return {technique: ways for technique, ways in pairs_by_technique.items() if ways}


def credits(chosen, whole):
    """Return the speedup of each technique in each of WAYS, a DataFrame of Ratios by technique.

    Holm corrects over all of them. Its column `says` is a remark if the first and the last gain
    differ significantly, else "".
    """
    medians = intervals.step_ms(selection.timed(chosen.all_rows))
    ratios = {}
    says = {}
    for technique, pairs_by_way in pairs(chosen, whole).items():
        logs = {
            way: np.log(medians[without] / medians[with_it])
            for way, (without, with_it) in pairs_by_way.items()
            if without in medians and with_it in medians
        }
        ratio_by_way = {way: intervals.ratio_of(values) for way, values in logs.items()}
        ratios[technique] = {way: ratio_by_way.get(way, intervals.Ratio()) for way in WAYS}
        says[technique] = ""
        if {"alone", "last"} <= logs.keys():
            verdict = intervals.ratio_of(logs["alone"] - logs["last"]).verdict
            if verdict in (intervals.Ratio.above, intervals.Ratio.below):
                gains = "less" if verdict == intervals.Ratio.above else "more"
                says[technique] = (
                    f"{ratio_by_way['alone'].text} alone and {ratio_by_way['last'].text} added "
                    f"last to {whole}; it gains {gains} in combination"
                )
    lines = pd.DataFrame.from_dict(ratios, "index", columns=[*WAYS]).rename_axis("technique")
    lines[:] = np.reshape(intervals.holm(lines.to_numpy().ravel()), lines.shape)
    return lines.assign(says=pd.Series(says, dtype=object))


def table(lines, in_file=False):
    """Return `credits` as a table with its remarks, a string. in_file: as Markdown."""
    shown = {"technique": list(lines.index)}
    for way, title in WAYS.items():
        shown[title] = [result_tables.bold(ratio) for ratio in lines[way]]
    says = [f"- {name}: {line.says}" for name, line in lines.iterrows() if line.says]
    return text_tables.page([shown, "\n".join(says)], in_file)
