"""Evidence of a recipe: for each technique, the ratio of two sets that differ in it alone."""

from Utils.analysis.intervals import Ratio, holm
from Utils.base.text import number

IN = "switch on"
NO_DIFFERENCE = Ratio.no_difference
OUT = "leave out"
ENOUGH = "not needed: this recipe holds without it"


def evidence_of(measured, name, tried):
    """Return the evidence of a Recipe, and the techniques that are slower by it.

    For each technique it is of two sets that differ in it alone. The table has the ratio and the
    verdict of a script over its parent; Holm corrects over the others.
    """
    figures = measured.figures
    table = {}
    others = {}
    texts = {}
    for technique in tried:
        pair = _nearest_pair(technique, measured, name)
        if pair is None:
            texts[technique] = "measured only in combination"
            continue
        without, with_it = pair
        line = figures.loc[with_it]
        more_mib = number(line.peak_memory_mib - figures.peak_memory_mib[without], "+,.0f")
        memory = f"; {more_mib} MiB" if more_mib else ""
        texts[technique] = f"{memory}: {with_it} against {without}"
        if line.parent == without:
            table[technique] = line.parent_speedup
        else:
            others[technique] = measured.levels.ratio(*pair)
    corrected = holm(list(others.values()))
    ratios = table | dict(zip(others, corrected, strict=True))

    slower = {technique for technique, ratio in ratios.items() if ratio.verdict == Ratio.lower}
    evidence = {IN: {}, NO_DIFFERENCE: {}, OUT: {}}
    for technique in tried:
        ratio = ratios.get(technique, Ratio())
        title = NO_DIFFERENCE if ratio.verdict == NO_DIFFERENCE else IN
        text = f"{ratio.text_with_verdict}{texts[technique]}"
        if technique not in measured.sets[name]:
            title = OUT
            if ratio.verdict not in (Ratio.lower, NO_DIFFERENCE):
                sets_with_it = [names for names in measured.sets.values() if technique in names]
                always = " and ".join(sorted(slower.intersection(*sets_with_it)))
                reason = f"measured only with {always}, which is slower" if always else ENOUGH
                text = f"{reason}; {text}"
            text = _problem_of(technique, measured) or text
        evidence[title][technique] = text
    return evidence, slower


def _nearest_pair(technique, measured, recipe):
    """Return the scripts (without it, with it) that are nearest to the recipe, a name, or None.

    Of equal sets the first counts, scripts before variants.
    """
    sets = measured.sets
    name_of_set = {techniques: name for name, techniques in reversed(sets.items())}
    nearest = sorted(name_of_set.values(), key=lambda name: len(sets[name] ^ sets[recipe]))
    for with_it in nearest:
        without = name_of_set.get(sets[with_it] - {technique}, with_it)
        differs = without != with_it
        if differs and measured.levels.ratio(without, with_it):
            return without, with_it
    return None


def _problem_of(technique, measured):
    """Return why the script that adds a technique cannot be recommended, or ""."""
    chosen = measured.study
    for name, problem in measured.problems.items():
        is_variant = chosen.is_ours and chosen.identities[name].suite == "ablation"
        if problem and not is_variant and ("+", technique) in chosen.change(name):
            return problem
    return ""
