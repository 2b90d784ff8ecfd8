"""Ablation: the speedup of each technique in three ways, from the same rounds.

Alone on the baseline, in the ladder on its parent, and added last to the script that is ablated.
"""

from Utils.analysis import result_tables, text_tables
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import Summary
from Utils.results.study import Study

WAYS = {  # ways to measure a speedup, with titles
    "alone": "alone, on the baseline",
    "ladder": "on the scripts before it",
    "last": "added last, to all the others",
}


def ablated_script(chosen: Study) -> str | None:
    """Return the script that a study's rows ablate, or None without rows of an ablation."""
    rows = chosen.all_rows[chosen.all_rows.suite == "ablation"]
    if rows.empty:
        return None

    for name in rows.sort_values("run_id", ascending=False).technique.unique():
        if chosen.leaves_out(name):
            return chosen.parent(name)
    return _last_rung(chosen)


def _last_rung(chosen):
    """Return the end of the ladder's longest line.

    Of the repository's scripts only tracked ones count, measured or not; of a user's script, those
    with timings.
    """
    if chosen.is_ours:
        return chosen.ladder.last_rung()
    timed = {*chosen.all_rows.technique[chosen.all_rows.status == "ok"]}
    rungs = (chosen.names("own") - chosen.beyond()) & timed
    names = [name for name in chosen.order if name in rungs]
    return max(names, key=lambda name: len(chosen.lineage(name)), default=chosen.base)


def pairs(chosen: Study, whole: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the pairs of scripts whose ratio is a technique's speedup, those that have rows.

    {technique: {way: (without it, with it)}}, techniques in the order of the ladder, ways as in
    WAYS. An ablation of the last rung has all scripts of the ladder, another one those of its line.
    """
    rungs = chosen.names("ladder") if whole == _last_rung(chosen) else set()
    scripts = {*chosen.lineage(whole), *rungs}
    members = set().union(*map(chosen.techniques, scripts))

    # In the ladder.
    pairs_by_technique = {}
    for name in chosen.order:
        change = chosen.change(name)
        for _, technique in change:
            if technique in members:
                pairs_by_way = pairs_by_technique.setdefault(technique, {})
                if name in scripts and len(change) == 1:
                    pairs_by_way["ladder"] = (chosen.parent(name), name)

    # Alone, and last. Of equal sets the first counts, scripts before variants.
    name_of_set = {chosen.techniques(name): name for name in reversed(chosen.order)}
    all_techniques = chosen.techniques(whole)
    for technique, pairs_by_way in pairs_by_technique.items():
        alone = name_of_set.get(frozenset({technique}))
        without = name_of_set.get(all_techniques - {technique})
        if alone:
            pairs_by_way["alone"] = (chosen.base, alone)
        if without and technique in all_techniques:
            pairs_by_way["last"] = (without, whole)
    return {technique: by_way for technique, by_way in pairs_by_technique.items() if by_way}


def credits_of(summary: Summary, whole: str) -> dict[str, dict[str, Ratio]]:
    """Return the speedup of each technique in each of WAYS, false if unknown."""
    credits = {}
    for technique, pairs_by_way in pairs(summary.study, whole).items():
        credits[technique] = dict.fromkeys(WAYS, Ratio())
        for way, pair in pairs_by_way.items():
            credits[technique][way] = summary.levels.ratio(*pair)
    return credits


def table(credits: dict[str, dict[str, Ratio]], in_file: bool = False) -> str:
    """Return the result of `credits_of` as a table. in_file: as Markdown."""
    columns = {"technique": list(credits)}
    for way, title in WAYS.items():
        columns[title] = [result_tables.bold(speedups[way]) for speedups in credits.values()]
    return text_tables.page([columns], in_file)
