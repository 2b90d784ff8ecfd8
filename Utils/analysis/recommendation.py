"""The measured set of techniques with the largest certain speedup.

The certain speedup is the lower end of its interval. A set is a script or variant with its line of
descent; it comes as text, as lines to copy and as a script. A sentence names the set with the least
memory near that speed.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field

import pandas as pd

from Utils.analysis.figures import ScriptFigures
from Utils.analysis.intervals import Ratio
from Utils.analysis.lines_to_copy import lines_by_library
from Utils.analysis.recipe_evidence import evidence_of
from Utils.analysis.repeat_command import make_command
from Utils.analysis.summary import Summary
from Utils.base.errors import UserError
from Utils.base.text import number
from Utils.results import selection
from Utils.scripts import variants
from Utils.scripts.identity import PATCH
from Utils.scripts.ladder import Technique

NEAR = 0.9  # least share of the recipe's speed, for the set with the least memory
AS_GOOD = 0.98  # share of the largest certain speedup, of which the set with fewest changes counts
LESS_MEMORY = 0.99  # share of the recipe's peak, below which another set is named
LONGEST = 60  # minutes that are proposed


@dataclass(frozen=True, eq=False)
class Recipe:
    """A measured set that is recommended, its techniques in the ladder's order.

    script: None for a user's own.
    figures: those of the summary.
    evidence: texts by technique that was tried, under IN, NO_DIFFERENCE (the set has these too) and
    OUT.
    slower: its techniques that are slower than the script without them.
    undecided: Ratios whose intervals contain 1, by technique.
    """

    name: str
    techniques: list[str]
    script: Technique | None
    figures: ScriptFigures
    sentences: list[str]
    evidence: dict[str, dict[str, str]]
    slower: list[str]
    undecided: dict[str, Ratio]

    @property
    def speedup(self) -> Ratio:
        """The speedup over the base."""
        return self.figures.speedup


@dataclass(frozen=True)
class Recommendation:
    """The Recipe for selected rows, None if no set is certainly faster.

    described: what the rows have in common, in one line.
    caveats: sentences on what limits the recommendation, and on other sets.
    set_aside: the caveats on faster sets, which have a technique that is slower by itself.
    lines: to copy, by library.
    """

    described: str
    caveats: list[str]
    fastest: Recipe | None = None
    set_aside: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)

    title = "Recipe: the measured set with the largest certain speedup"

    @property
    def headline(self) -> str:
        """The recipe for speed in a sentence, or why there is none."""
        recipe = self.fastest
        if not recipe:
            return self.caveats[0]
        figures = recipe.figures
        clauses = [f"{recipe.name}, {recipe.speedup} over {figures.base}", _mib(figures)]
        verdict = figures.loss_difference.verdict
        if verdict:
            clauses.append(f"loss {verdict}")
        return "; ".join([f"{self.title}: {', '.join(clauses)}", *self.set_aside]) + "."


def recommend(summary: Summary) -> Recommendation:
    """Return the Recommendation for a study, an ablation included."""
    chosen = summary.study
    scripts = summary.scripts
    described = selection.description(chosen.all_rows)
    again = make_command(chosen)

    usable = [s for s in scripts.values() if not s.problem and PATCH not in s.techniques]
    if all(script.name == chosen.base for script in usable):
        problems = [f"{name}: {s.problem}" for name, s in scripts.items() if s.problem]
        reason = (problems or ["no technique was measured"])[0]
        return Recommendation(described, [f"no recommendation: {reason}; {again}"])

    # No technique that is slower by itself is proposed: its set has to be measured without it.
    set_aside = []
    while certain := [script for script in usable if script.speedup.low > 1]:
        recipe = _recipe(summary, _most_certain(certain))
        if not recipe.slower:
            break
        target = f"ablate T={recipe.name}" if chosen.is_ours else f"ablate BASE={chosen.base}"
        set_aside.append(
            f"faster, but with {' and '.join(recipe.slower)}, slower by itself: {recipe.name}, "
            f"{recipe.speedup}; {make_command(chosen, target=target)} measures it without"
        )
        usable = [script for script in usable if script.techniques.isdisjoint(recipe.slower)]
    if not certain:
        return Recommendation(described, [_nothing_certain(summary, usable), *set_aside])

    # What limits the recipe for speed.
    caveats = [*set_aside]
    if recipe.undecided:
        texts = _undecided(summary, recipe.undecided)
        caveats.append(f"undecided: {'; '.join(texts)}")
    untried = _untried(chosen, usable, recipe)
    if untried:
        caveats.append(
            f"{recipe.name} was not measured without {' or '.join(untried)}, so a shorter recipe "
            f"may exist: {make_command(chosen, target=f'ablate T={recipe.name}')}"
        )

    # The set with the least memory among those near that speed, if it saves some.
    slowest_ms = recipe.figures.step_ms / NEAR
    near = [script for script in usable if script.step_ms <= slowest_ms]
    smallest = min(near, key=lambda script: script.peak_memory_mib)
    if smallest.peak_memory_mib < LESS_MEMORY * recipe.figures.peak_memory_mib:
        caveats.append(
            f"least memory within {1 - NEAR:.0%} of that speed: {smallest.name}, {_mib(smallest)}"
        )

    lines = {}
    if chosen.is_ours:
        batch = number(recipe.figures.own_batch, ".0f") or "..."
        lines = lines_by_library(recipe.techniques, chosen.ladder, batch)
    return Recommendation(described, caveats, recipe, set_aside, lines)


def _most_certain(scripts):
    """Return the script with the fewest changes, then the least memory, of the most certain."""
    least = AS_GOOD * max(script.speedup.low for script in scripts)
    as_good = [script for script in scripts if script.speedup.low >= least]
    return min(as_good, key=lambda script: (len(script.techniques), script.peak_memory_mib))


def _nothing_certain(summary, usable):
    """Return a sentence on the likeliest script, if none is certainly faster."""
    base = summary.study.base
    nothing = "no recommendation: no interval is above 1"
    sets = [script for script in usable if script.name != base]
    if not sets:
        return nothing
    likeliest = max(sets, key=lambda script: script.speedup.value)
    speedup = likeliest.speedup
    if speedup.interval:
        return "; ".join([nothing, *_undecided(summary, {likeliest.name: speedup})])
    likely = f"{likeliest.name}, {speedup} over {base}"
    if not speedup.value > 1:
        likely = f"nothing is faster than {base}"
    rounds = "one round" if summary.most_rounds == 1 else "too few rounds in turns"

    return f"{rounds}: likely {likely}; {make_command(summary.study)}"


def _undecided(summary, ratios):
    """Return texts on Ratios whose intervals contain 1, by name, and the command that decides.

    Intervals get narrower with the square root of the rounds.
    """
    took_s = summary.most_rounds * _round_s(summary.study)
    longest = 0
    texts = []

    for name, ratio in ratios.items():
        half = math.log(ratio.high / ratio.low) / 2
        distance = abs(math.log(ratio.value))
        times_the_rounds = max(1, (half / distance) ** 2) if distance else math.inf
        minutes = times_the_rounds * took_s / 60
        if minutes <= LONGEST:
            longest = max(longest, math.ceil(minutes))
            texts.append(f"{name}, {ratio}, decided after about {math.ceil(minutes)} min")
        else:
            most = max(ratio.high - 1, 1 - ratio.low)
            texts.append(f"{name}, {ratio}: at most {most:.0%} either way")

    if longest:
        texts.append(make_command(summary.study, f"MINUTES={longest}"))
    return texts


def _round_s(chosen):
    """Return the seconds of a round, from its first start to its last end; NaN without records."""
    ended = {run_id: record.get("ended") for run_id, record in chosen.records.items()}
    runs = chosen.all_rows.drop_duplicates("run_id")
    starts = runs.run_id.astype(str).str.rpartition("-")[0]
    times = pd.DataFrame({"start": starts, "end": runs.run_id.map(ended)}, dtype=object)
    times = times.apply(pd.to_datetime, utc=True, format="ISO8601", errors="coerce")
    by_round = times.groupby(runs["round"])
    return (by_round.end.max() - by_round.start.min()).median().total_seconds()


def _untried(chosen, usable, recipe):
    """Return the techniques without which the recipe can be made but was not measured."""
    ladder = chosen.ladder
    if not chosen.is_ours or recipe.name not in ladder.scripts:
        return []
    sets = [script.techniques for script in usable]
    techniques = recipe.figures.techniques
    untried = [name for name in ladder.lineage(recipe.name)[1:] if techniques - {name} not in sets]
    with suppress(UserError):  # merging needs git
        return [name for name in untried if variants.without([name], recipe.name, ladder)]
    return []


def _recipe(summary, figures):
    """Return the Recipe of a measured script or variant."""
    chosen = summary.study
    name = figures.name
    script = variants.find(name, chosen.ladder) if chosen.is_ours else None
    tried = _tried(summary)
    techniques = [technique for technique in tried if technique in figures.techniques]
    evidence, ratios = evidence_of(summary, figures, tried)
    batch = number(figures.own_batch, ".0f")

    sentences = [f"{name}: {_mib(figures)} at the peak."]
    if techniques:
        sentences.append(f"Against {figures.base}: {str(figures.speedup) or 'not known'}.")
    difference = figures.loss_difference.text_with_verdict
    if difference:
        sentences.append(f"Loss minus the baseline's: {difference} ({figures.parity}).")
    if batch:
        fewer = "fewer updates for as many tokens, which changes training"
        sentences.append(f"It trains on {batch} sequences a step: {fewer}.")

    slower = [name for name in techniques if ratios[name].verdict == Ratio.lower]
    undecided = {
        name: ratio for name, ratio in ratios.items() if ratio.verdict == Ratio.no_difference
    }
    return Recipe(name, techniques, script, figures, sentences, evidence, slower, undecided)


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
        return [technique for technique in dict.fromkeys(added) if technique != PATCH]
    return [technique for technique in chosen.ladder.scripts if technique in tried.union(added)]
