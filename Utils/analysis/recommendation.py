"""The smallest measured set of techniques that is statistically as fast as the fastest.

Another recipe has the least memory among the sets near that speed. A set is a script or variant
with its line of descent; it comes as text, as lines to copy and as a script.
"""

import itertools
from dataclasses import dataclass, field

import pandas as pd

from Utils.analysis.figures import ScriptFigures
from Utils.analysis.intervals import Ratio
from Utils.analysis.lines_to_copy import lines_by_library, own_lines
from Utils.analysis.recipe_evidence import evidence_of
from Utils.analysis.repeat_command import make_command
from Utils.analysis.summary import Summary
from Utils.base.text import number
from Utils.results import selection
from Utils.scripts import variants
from Utils.scripts.ladder import Technique

NEAR = 0.9  # least share of the best speed, for the recipe with the least memory
FASTEST = "Recipe: the smallest measured set statistically indistinguishable from the fastest"
LEAST_MEMORY = f"Least memory within {1 - NEAR:.0%} of the best speed"
WIDE = 0.95  # an interval with a lower end gets a caveat
ROUNDS = 4  # enough for an interval
LESS_MEMORY = 0.99  # share of the peak of the recipe for speed, for a second recipe


@dataclass(frozen=True, eq=False)
class Recipe:
    """A measured set that is recommended, its techniques in the ladder's order.

    script: None for a user's own.
    figures: those of the summary.
    to_best: speedup over the fastest set.
    evidence: texts by technique that was tried, under IN, NO_DIFFERENCE (the set has these too) and
    OUT.
    slower: its techniques that are slower than the script without them.
    """

    name: str
    techniques: list[str]
    script: Technique | None
    figures: ScriptFigures
    to_best: Ratio
    sentences: list[str]
    evidence: dict[str, dict[str, str]]
    slower: list[str]

    @property
    def speedup(self) -> Ratio:
        """The speedup over the base."""
        return self.figures.speedup


@dataclass(frozen=True)
class Recommendation:
    """Recipes for selected rows by title: FASTEST, and LEAST_MEMORY if it is another set.

    described: what the rows have in common, in one line.
    caveats: sentences on what limits the recommendation.
    best: name of the fastest measured set.
    set_aside: the caveats on faster sets, which have a technique that is slower by itself.
    lines: to copy, by what they are for; those that several recipes have are there once.
    """

    described: str
    caveats: list[str]
    best: str = ""
    recipes: dict[str, Recipe] = field(default_factory=dict)
    set_aside: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)

    @property
    def fastest(self) -> Recipe | None:
        return self.recipes.get(FASTEST)

    @property
    def headline(self) -> str:
        """The recipe for speed in a sentence; "" if nothing is faster than the baseline."""
        recipe = self.fastest
        if (
            not recipe
            or not recipe.speedup.value > 1
            or recipe.speedup.verdict == Ratio.no_difference
        ):
            return ""
        figures = recipe.figures
        clauses = [f"{recipe.name}, {recipe.speedup} over {figures.base}", _mib(figures)]
        verdict = figures.loss_difference.verdict
        if verdict:
            clauses.append(f"loss {verdict}")
        return "; ".join([f"{FASTEST}: {', '.join(clauses)}", *self.set_aside]) + "."


def recommend(summary: Summary) -> Recommendation:
    """Return the Recommendation for a study, an ablation included."""
    chosen = summary.study
    scripts = summary.scripts
    described = selection.description(chosen.all_rows)
    again = make_command(chosen, ROUNDS)

    def nothing_because_of(problem):
        return Recommendation(described, [f"nothing is recommended: {problem}; {again}"])

    usable = [name for name, script in scripts.items() if not script.problem]
    problems = [f"{name}: {script.problem}" for name, script in scripts.items() if script.problem]
    if not usable or (usable == [chosen.base] and problems):
        return nothing_because_of(problems[0])
    if max(script.rounds for script in scripts.values()) == 1:
        fastest = max((scripts[name] for name in usable), key=lambda script: script.speedup.value)
        likely = f"{fastest.name}, {fastest.speedup} over {chosen.base}"
        if fastest.name == chosen.base:
            likely = f"nothing is faster than {chosen.base}"
        return Recommendation(described, [f"one round: likely {likely}; {again}"])

    # No technique that is slower by itself is proposed: its set has to be measured without it.
    set_aside = []
    while True:
        best, recipe = _recipe_for_speed(summary, usable)
        if not recipe.slower:
            break
        target = f"ablate T={recipe.name}" if chosen.is_ours else f"ablate BASE={chosen.base}"
        set_aside.append(
            f"faster, but with {' and '.join(recipe.slower)}, slower by itself: {recipe.name}, "
            f"{recipe.speedup}; {make_command(chosen, ROUNDS, target)} measures it without"
        )
        usable = [name for name in usable if scripts[name].techniques.isdisjoint(recipe.slower)]
    if recipe.speedup.is_uncertain:
        return nothing_because_of(f"{recipe.name}: {recipe.speedup.remedy}")
    recipes = {FASTEST: recipe}

    # The set with the least memory among those near the best speed, if it saves some.
    near = [name for name in usable if summary.levels.ratio(best, name).value >= NEAR]
    peaks_mib = pd.Series({name: scripts[name].peak_memory_mib for name in near})
    least_mib = peaks_mib.min()
    if least_mib < LESS_MEMORY * recipe.figures.peak_memory_mib:
        as_lean = peaks_mib.index[peaks_mib <= least_mib / LESS_MEMORY]
        lean_recipe = _smallest(summary, as_lean, best)
        if not lean_recipe.slower:
            recipes[LEAST_MEMORY] = lean_recipe

    caveats = set_aside + _caveats(summary, usable, recipe, best)
    lines = _lines(chosen, recipes.values())
    return Recommendation(described, caveats, best, recipes, set_aside, lines)


def _recipe_for_speed(summary, usable):
    """Return the fastest script, and the Recipe of the smallest set not significantly slower.

    The fastest of few rounds would be the luckiest, and every comparison with it inconclusive: so a
    script needs half of the most rounds, and two if any has two.
    """
    rounds = summary.levels.logs[usable].count()
    fewest = max(min(2, rounds.max()), rounds.max() / 2)
    enough = rounds.index[rounds >= fewest]
    best = max(enough, key=lambda name: summary.scripts[name].speedup.value)

    as_good = [
        name
        for name in usable
        if summary.levels.ratio(best, name).verdict in (Ratio.higher, Ratio.no_difference)
    ]
    return best, _smallest(summary, as_good, best)


def _smallest(summary, names, best):
    """Return the Recipe of the smallest set, of equal ones the fastest."""

    def size_and_speed(name):
        speed = summary.levels.ratio(best, name).value
        return len(summary.scripts[name].techniques), -speed

    return _recipe(summary, min(names, key=size_and_speed), best)


def _caveats(summary, usable, recipe, best):
    """Return sentences on what limits the recipe for speed. best: the fastest set."""
    chosen = summary.study
    caveats = []
    if recipe.to_best.low < WIDE:
        caveats.append(
            f"{recipe.name} may be up to {1 - recipe.to_best.low:.0%} slower than {best}, "
            f"by the 95% interval; measure more rounds: {make_command(chosen, ROUNDS)}"
        )
    if not recipe.techniques:
        caveats.append(f"nothing pays: no set is significantly faster than {recipe.name}")
    untried = _untried(summary, usable, best)
    if untried:
        caveats.append(
            f"{best} was not measured without {' or '.join(untried)}, so a shorter recipe may "
            f"exist: {make_command(chosen, ROUNDS, f'ablate T={best}')}"
        )
    return caveats


def _untried(summary, usable, best):
    """Return the techniques without which the best script can be made but was not measured."""
    ladder = summary.study.ladder
    if not summary.study.is_ours or best not in ladder.scripts:
        return []
    sets = [summary.scripts[name].techniques for name in usable]
    techniques = summary.scripts[best].techniques
    untried = [name for name in ladder.lineage(best)[1:] if techniques - {name} not in sets]
    return [name for name in untried if variants.without([name], best, ladder)]


def _recipe(summary, name, best):
    """Return the Recipe of a measured script or variant. best: the fastest."""
    chosen = summary.study
    figures = summary.scripts[name]
    script = variants.find(name, chosen.ladder) if chosen.is_ours else None
    tried = _tried(summary)
    techniques = [technique for technique in tried if technique in figures.techniques]
    to_best = summary.levels.ratio(best, name)
    evidence, slower = evidence_of(summary, figures, tried)
    batch = number(figures.own_batch, ".0f")

    sentences = [f"{name}: {_mib(figures)} at the peak."]
    if techniques:
        sentences.append(f"Against {figures.base}: {str(figures.speedup) or 'not known'}.")
    if name != best:
        fastest = f"{best} with {summary.scripts[best].speedup}"
        sentences.append(f"Against the fastest, {fastest}: {to_best.text_with_verdict}.")
    difference = figures.loss_difference.text_with_verdict
    if difference:
        sentences.append(f"Loss minus the baseline's: {difference} ({figures.parity}).")
    if batch:
        fewer = "fewer updates for as many tokens, which changes training"
        sentences.append(f"It trains on {batch} sequences a step: {fewer}.")

    slower = [technique for technique in techniques if technique in slower]
    return Recipe(name, techniques, script, figures, to_best, sentences, evidence, slower)


def _lines(chosen, recipes):
    """Return the lines to copy by what they are for."""
    sets = [recipe.techniques for recipe in recipes]
    if chosen.is_ours:
        batch = max(number(recipe.figures.own_batch, ".0f") for recipe in recipes)
        return lines_by_library(sets, chosen.ladder, batch or "...")
    techniques = dict.fromkeys(itertools.chain(*sets))
    return {"your script": own_lines(techniques, chosen.records) or ["none"]}


def _mib(figures):
    return f"{number(figures.peak_memory_mib, ',.0f') or 'unknown'} MiB"


def _tried(summary):
    """Return the techniques that have been tried, in the order of the ladder."""
    chosen = summary.study
    tried = set()
    added = []
    for name, script in summary.scripts.items():
        if script.is_timed:
            tried |= script.techniques
        added += [technique for sign, technique in chosen.change(name) if sign == "+"]
    if not chosen.is_ours:
        return list(dict.fromkeys(added))
    return [technique for technique in chosen.ladder.scripts if technique in tried.union(added)]
