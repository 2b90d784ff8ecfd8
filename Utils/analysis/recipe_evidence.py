"""Evidence of a recipe: for each technique, the ratio of two sets that differ in it alone."""

from Utils.analysis.figures import ScriptFigures
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import Summary
from Utils.base.text import number

IN = "switch on"
NO_DIFFERENCE = Ratio.no_difference
OUT = "leave out"
ENOUGH = "not needed: the recipe is as fast without it"


def evidence_of(
    summary: Summary, recipe: ScriptFigures, tried: list[str]
) -> tuple[dict[str, dict[str, str]], dict[str, Ratio]]:
    """Return the evidence of a Recipe, and the Ratio of each technique, false if unknown.

    A technique's ratio compares two sets that differ only in it.
    """
    timed = [script for script in summary.scripts.values() if script.is_timed]
    ratios = dict.fromkeys(tried, Ratio())
    texts = dict.fromkeys(tried, "measured only in combination")
    for technique in tried:
        pair = _nearest_pair(technique, timed, recipe, summary.levels)
        if pair:
            without, with_it = pair
            ratio = ratios[technique] = summary.levels.ratio(without.name, with_it.name)
            more_mib = number(with_it.peak_memory_mib - without.peak_memory_mib, "+,.0f")
            memory = f"; {more_mib} MiB" if more_mib else ""
            sets = f"{with_it.name} against {without.name}"
            texts[technique] = f"{ratio.text_with_verdict}{memory}: {sets}"

    slower = {technique for technique, ratio in ratios.items() if ratio.verdict == Ratio.lower}
    evidence = {IN: {}, NO_DIFFERENCE: {}, OUT: {}}
    for technique in tried:
        verdict = ratios[technique].verdict
        title = NO_DIFFERENCE if verdict == NO_DIFFERENCE else IN
        text = texts[technique]
        if technique not in recipe.techniques:
            title = OUT
            if verdict not in (Ratio.lower, NO_DIFFERENCE):
                sets_with_it = [s.techniques for s in timed if technique in s.techniques]
                always = " and ".join(sorted(slower.intersection(*sets_with_it)))
                reason = f"measured only with {always}, which is slower" if always else ENOUGH
                text = f"{reason}; {text}"
            problem = _problem_of(technique, summary)
            if problem:
                ratios[technique] = Ratio()
                text = problem
        evidence[title][technique] = text
    return evidence, ratios


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
