"""Evidence of a recipe: for each technique, the ratio of two sets that differ in it alone."""

from Utils.analysis.figures import ScriptFigures
from Utils.analysis.intervals import Ratio, holm
from Utils.analysis.summary import Summary
from Utils.base.text import number

IN = "switch on"
NO_DIFFERENCE = Ratio.no_difference
OUT = "leave out"
ENOUGH = "not needed: this recipe holds without it"


def evidence_of(
    summary: Summary, recipe: ScriptFigures, tried: list[str]
) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Return the evidence of a Recipe, and the techniques that are slower by it.

    For each technique it is of two sets that differ in it alone. The table has the ratio and the
    verdict of a script over its parent; Holm corrects over the others.
    """
    timed = [script for script in summary.scripts.values() if script.is_timed]
    table = {}
    others = {}
    texts = {}
    for technique in tried:
        pair = _nearest_pair(technique, timed, recipe, summary.levels)
        if pair is None:
            texts[technique] = "measured only in combination"
            continue
        without, with_it = pair
        more_mib = number(with_it.peak_memory_mib - without.peak_memory_mib, "+,.0f")
        memory = f"; {more_mib} MiB" if more_mib else ""
        texts[technique] = f"{memory}: {with_it.name} against {without.name}"
        if with_it.parent == without.name:
            table[technique] = with_it.parent_speedup
        else:
            others[technique] = summary.levels.ratio(without.name, with_it.name)
    corrected = holm(list(others.values()))
    ratios = table | dict(zip(others, corrected, strict=True))

    slower = {technique for technique, ratio in ratios.items() if ratio.verdict == Ratio.lower}
    evidence = {IN: {}, NO_DIFFERENCE: {}, OUT: {}}
    for technique in tried:
        ratio = ratios.get(technique, Ratio())
        title = NO_DIFFERENCE if ratio.verdict == NO_DIFFERENCE else IN
        text = f"{ratio.text_with_verdict}{texts[technique]}"
        if technique not in recipe.techniques:
            title = OUT
            if ratio.verdict not in (Ratio.lower, NO_DIFFERENCE):
                sets_with_it = [s.techniques for s in timed if technique in s.techniques]
                always = " and ".join(sorted(slower.intersection(*sets_with_it)))
                reason = f"measured only with {always}, which is slower" if always else ENOUGH
                text = f"{reason}; {text}"
            text = _problem_of(technique, summary) or text
        evidence[title][technique] = text
    return evidence, slower


def _nearest_pair(technique, timed, recipe, levels):
    """Return the scripts (without it, with it) that are nearest to the recipe, or None.

    Of equal sets the first counts, scripts before variants.
    """
    by_set = {script.techniques: script for script in reversed(timed)}
    nearest = sorted(by_set.values(), key=lambda script: len(script.techniques ^ recipe.techniques))
    for with_it in nearest:
        without = by_set.get(with_it.techniques - {technique}, with_it)
        if without is not with_it and levels.ratio(without.name, with_it.name):
            return without, with_it
    return None


def _problem_of(technique, summary):
    """Return why the script that adds a technique cannot be recommended, or ""."""
    chosen = summary.study
    for name, script in summary.scripts.items():
        is_variant = chosen.is_ours and chosen.identities[name].suite == "ablation"
        if script.problem and not is_variant and ("+", technique) in chosen.change(name):
            return script.problem
    return ""
