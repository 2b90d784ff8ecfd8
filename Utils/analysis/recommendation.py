"""The smallest measured set of techniques that is statistically as fast as the fastest.

Another recipe has the least memory among the sets near that speed. A set is a script or variant
with its line of descent; it comes as text, as lines to copy and as a script.
"""

import itertools
from dataclasses import dataclass, field

import pandas as pd

from Utils.analysis.intervals import Ratio
from Utils.analysis.levels import Levels
from Utils.analysis.lines_to_copy import lines_by_library, own_lines
from Utils.analysis.recipe_evidence import evidence_of
from Utils.analysis.repeat_command import make_command
from Utils.analysis.summary import Summary
from Utils.base.errors import UserError
from Utils.base.text import number
from Utils.results import selection
from Utils.results.study import Study
from Utils.scripts import variants
from Utils.scripts.ladder import Technique

NEAR = 0.9  # least share of the best speed, for the recipe with the least memory
FASTEST = "Recipe: the smallest measured set statistically indistinguishable from the fastest"
LEAST_MEMORY = f"Least memory within {1 - NEAR:.0%} of the best speed"
WIDE = 0.95  # an interval with a lower end gets a caveat
ROUNDS = 4  # enough for an interval
LESS_MEMORY = 0.99  # share of the peak of the recipe for speed, for a second recipe
# Needs of scripts that gain a wait for the device: on a CPU, which has none, they have no effect.
WAITS = {"device_queue", "copy_engine", "device_memory", "cuda_graphs"}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A measured set that is recommended, its techniques in the ladder's order.

    script: None for a user's own.
    line: its line of the summary.
    to_best: speedup over the fastest set.
    evidence: texts by technique that was tried, under IN, NO_DIFFERENCE (the set has these too) and
    OUT.
    slower: its techniques that are slower than the script without them.
    """

    name: str
    techniques: list[str]
    script: Technique | None
    line: pd.Series
    to_best: Ratio
    sentences: list[str]
    evidence: dict[str, dict[str, str]]
    slower: list[str]

    @property
    def speedup(self) -> Ratio:
        """The speedup over the base."""
        return self.line.speedup


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
        clauses = [f"{recipe.name}, {recipe.speedup} over {recipe.line.base}", _mib(recipe.line)]
        verdict = recipe.line.loss_difference.verdict
        if verdict:
            clauses.append(f"loss {verdict}")
        return "; ".join([f"{FASTEST}: {', '.join(clauses)}", *self.set_aside]) + "."


@dataclass(frozen=True)
class _Measured:
    """A study with figures, the techniques of each script, and why it cannot be recommended.

    sets: of the scripts with timings. problems: "" for scripts that can be recommended.
    """

    study: Study
    levels: Levels
    figures: pd.DataFrame
    sets: dict[str, frozenset]
    problems: dict[str, str]


def _measured(summary):
    chosen = summary.study
    figures = summary.all_figures
    sets = {name: chosen.techniques(name) for name in figures.index if name in summary.levels.logs}
    statuses = chosen.all_rows.groupby(["technique", "round"]).status.first()
    problems = {
        name: _problem(chosen, name, statuses[name], figures, sets) for name in figures.index
    }
    return _Measured(chosen, summary.levels, figures, sets, problems)


def _problem(chosen, name, statuses, figures, sets):
    """Return why a script or variant cannot be recommended, or "". statuses: its own, by round."""
    line = figures.loc[name]
    failed = statuses[statuses.isin(["failed", "out_of_memory"])]
    if line.status != "ok":
        return line.reason
    if len(failed):
        return f"{failed.iloc[0].replace('_', ' ')} in round {failed.index[0]}"
    if chosen.is_ours:
        try:
            variants.find(name, chosen.ladder)
        except UserError:  # its merges conflict since a script was edited
            return "its script can no longer be made"

    on_cpu = chosen.all_rows.reserved_memory_mib.isna().all()
    if on_cpu and _gains_a_wait(chosen, name):
        return "no effect here"
    if figures.status.get(line.base) != "ok":
        return f"not measured with {line.base}"
    if line.base in sets and name in sets and not line.speedup:
        return f"no round in common with {line.base}"
    if line.parity in ("model changed", "another optimizer"):
        return line.parity
    if line.loss_difference.verdict in ("worse", "diverged"):
        return f"its loss: {line.loss_difference.text_with_verdict}"
    return "" if name in sets else line.quality


def _gains_a_wait(chosen, name):
    """Return whether a script adds a technique that gains a wait for the device.

    Of one that leaves techniques out, it is what its parent adds.
    """
    if chosen.leaves_out(name):
        name = chosen.parent(name)
    scripts = chosen.ladder.scripts
    for sign, technique in chosen.change(name):
        if sign == "+" and technique in scripts:
            parent = scripts.get(scripts[technique].parent)
            before = parent.needs if parent else ()
            if WAITS.intersection(scripts[technique].needs).difference(before):
                return True
    return False


def recommend(summary: Summary) -> Recommendation:
    """Return the Recommendation for a study, an ablation included."""
    measured = _measured(summary)
    chosen = measured.study
    described = selection.description(chosen.all_rows)
    again = make_command(chosen, ROUNDS)

    def nothing_because_of(problem):
        return Recommendation(described, [f"nothing is recommended: {problem}; {again}"])

    usable = [name for name, problem in measured.problems.items() if not problem]
    if chosen.disturbed:
        return nothing_because_of(chosen.disturbed)
    if measured.figures.rounds.max() == 1:
        return nothing_because_of("one round shows no difference")
    problems = [f"{name}: {text}" for name, text in measured.problems.items() if text]
    if not usable or (usable == [chosen.base] and problems):
        return nothing_because_of(problems[0])

    # No technique that is slower by itself is proposed: its set has to be measured without it.
    set_aside = []
    while True:
        best, recipe = _recipe_for_speed(measured, usable)
        if not recipe.slower:
            break
        target = f"ablate T={recipe.name}" if chosen.is_ours else f"ablate BASE={chosen.base}"
        set_aside.append(
            f"faster, but with {' and '.join(recipe.slower)}, slower by itself: {recipe.name}, "
            f"{recipe.speedup}; {make_command(chosen, ROUNDS, target)} measures it without"
        )
        usable = [name for name in usable if measured.sets[name].isdisjoint(recipe.slower)]
    if recipe.speedup.is_uncertain:
        return nothing_because_of(f"{recipe.name}: {recipe.speedup.remedy}")
    recipes = {FASTEST: recipe}

    # The set with the least memory among those near the best speed, if it saves some.
    near = [name for name in usable if measured.levels.ratio(best, name).value >= NEAR]
    peaks_mib = measured.figures.peak_memory_mib[near]
    least_mib = peaks_mib.min()
    if least_mib < LESS_MEMORY * recipe.line.peak_memory_mib:
        as_lean = peaks_mib.index[peaks_mib <= least_mib / LESS_MEMORY]
        lean_recipe = _smallest(measured, as_lean, best)
        if not lean_recipe.slower:
            recipes[LEAST_MEMORY] = lean_recipe

    caveats = set_aside + _caveats(measured, usable, recipe, best)
    lines = _lines(chosen, recipes.values())
    return Recommendation(described, caveats, best, recipes, set_aside, lines)


def _recipe_for_speed(measured, usable):
    """Return the fastest script, and the Recipe of the smallest set not significantly slower.

    The fastest of few rounds would be the luckiest, and every comparison with it inconclusive: so a
    script needs half of the most rounds, and two if any has two.
    """
    rounds = measured.levels.logs[usable].count()
    fewest = max(min(2, rounds.max()), rounds.max() / 2)
    enough = rounds.index[rounds >= fewest]
    best = max(enough, key=lambda name: measured.figures.speedup[name].value)

    as_good = [
        name
        for name in usable
        if measured.levels.ratio(best, name).verdict in (Ratio.higher, Ratio.no_difference)
    ]
    return best, _smallest(measured, as_good, best)


def _smallest(measured, names, best):
    """Return the Recipe of the smallest set, of equal ones the fastest."""

    def size_and_speed(name):
        return len(measured.sets[name]), -measured.levels.ratio(best, name).value

    return _recipe(measured, min(names, key=size_and_speed), best)


def _caveats(measured, usable, recipe, best):
    """Return sentences on what limits the recipe for speed. best: the fastest set."""
    chosen = measured.study
    caveats = []
    if recipe.to_best.low < WIDE:
        caveats.append(
            f"{recipe.name} may be up to {1 - recipe.to_best.low:.0%} slower than {best}, "
            f"by the 95% interval; measure more rounds: {make_command(chosen, ROUNDS)}"
        )
    if not recipe.techniques:
        caveats.append(f"nothing pays: no set is significantly faster than {recipe.name}")
    untried = _untried(measured, usable, best)
    if untried:
        caveats.append(
            f"{best} was not measured without {' or '.join(untried)}, so a shorter recipe may "
            f"exist: {make_command(chosen, ROUNDS, f'ablate T={best}')}"
        )
    return caveats


def _untried(measured, usable, best):
    """Return the techniques without which the best script can be made but was not measured."""
    ladder = measured.study.ladder
    if not measured.study.is_ours or best not in ladder.scripts:
        return []
    sets = [measured.sets[name] for name in usable]
    untried = [
        name for name in ladder.lineage(best)[1:] if measured.sets[best] - {name} not in sets
    ]
    return [name for name in untried if variants.without([name], best, ladder)]


def _recipe(measured, name, best):
    """Return the Recipe of a measured script or variant. best: the fastest."""
    chosen = measured.study
    line = measured.figures.loc[name]
    script = variants.find(name, chosen.ladder) if chosen.is_ours else None
    tried = _tried(measured)
    techniques = [technique for technique in tried if technique in measured.sets[name]]
    to_best = measured.levels.ratio(best, name)
    evidence, slower = evidence_of(measured, name, tried)
    batch = number(line.own_batch, ".0f")

    sentences = [f"{name}: {_mib(line)} at the peak."]
    if techniques:
        sentences.append(f"Against {line.base}: {str(line.speedup) or 'not known'}.")
    if name != best:
        fastest = f"{best} with {measured.figures.speedup[best]}"
        sentences.append(f"Against the fastest, {fastest}: {to_best.text_with_verdict}.")
    difference = line.loss_difference.text_with_verdict
    if difference:
        sentences.append(f"Loss minus the baseline's: {difference} ({line.parity}).")
    if batch:
        fewer = "fewer updates for as many tokens, which changes training"
        sentences.append(f"It trains on {batch} sequences a step: {fewer}.")

    slower = [technique for technique in techniques if technique in slower]
    return Recipe(name, techniques, script, line, to_best, sentences, evidence, slower)


def _lines(chosen, recipes):
    """Return the lines to copy by what they are for."""
    sets = [recipe.techniques for recipe in recipes]
    if chosen.is_ours:
        batch = max(number(recipe.line.own_batch, ".0f") for recipe in recipes)
        return lines_by_library(sets, chosen.ladder, batch or "...")
    techniques = dict.fromkeys(itertools.chain(*sets))
    return {"your script": own_lines(techniques, chosen.records) or ["none"]}


def _mib(line):
    return f"{number(line.peak_memory_mib, ',.0f') or 'unknown'} MiB"


def _tried(measured):
    """Return the techniques that have been tried, in the order of the ladder."""
    chosen = measured.study
    tried = set().union(*measured.sets.values())
    in_order = []
    for name in measured.figures.index:
        in_order += [technique for sign, technique in chosen.change(name) if sign == "+"]
    order = chosen.ladder.scripts if chosen.is_ours else dict.fromkeys(in_order)
    return [technique for technique in order if technique in tried.union(in_order)]
