"""The shortest measured set of techniques that is statistically indistinguishable from the fastest.

A set is the line of descent of a script or variant. It is a candidate where its result is
acceptable: measured cleanly, the baseline's model, no worse loss. The shortest candidate whose
paired ratio to the fastest is not significantly slower is the recipe; a second recipe has the least
memory within 10% of the best speed.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import intervals, round_levels
from Utils.analysis.intervals import Ratio
from Utils.analysis.make_line import given_settings, make_line, target
from Utils.analysis.summary import grade_text, reason, summarize
from Utils.base.errors import UserError
from Utils.results import selection
from Utils.scripts import ladder, own_names, variants
from Utils.scripts.ladder import Technique

NEAR = 0.9  # of the best speed, at least, for the recipe with the least memory
WIDE = 0.95  # an interval with a lower end gets a caveat
BAD = ("failed", "out_of_memory")
MORE = {"ROUNDS": 5}  # enough for an interval
# Needs of scripts that gain a wait for the device: on a CPU, which has none, they have no effect.
WAITS = {"device_queue", "copy_engine", "device_memory", "cuda_graphs"}


@dataclass(frozen=True, eq=False)
class MeasuredSet:
    """A script or variant with clean timings.

    ms, mib: logarithms of its step time (for as many tokens) and peak memory, Series by round.
    line: of the summary.
    """

    name: str
    techniques: frozenset
    ms: pd.Series
    mib: pd.Series
    line: pd.Series

    @property
    def peak_mib(self):
        return float(np.exp(self.mib.median()))

    def gain(self, reference, metric="ms"):
        """Return the Ratio of a reference's time, or memory ("mib"), to that of this set."""
        return intervals.ratio_of(getattr(reference, metric) - getattr(self, metric))


@dataclass(frozen=True, eq=False)
class Recipe:
    """A measured set that is recommended.

    script: the script or variant; None of a user's own script, for which own_lines has the lines to
    add, (code, place) of each, by technique. speedup: over the base; to_best: over the fastest
    measured set. switch_on, leave_out: the evidence for and against techniques, a text each. The
    measured set includes those of no_difference.
    """

    measured: MeasuredSet
    script: Technique | None
    own_lines: dict
    techniques: list
    speedup: Ratio
    to_best: Ratio
    switch_on: dict
    no_difference: dict
    leave_out: dict

    @property
    def name(self):
        return self.measured.name

    @property
    def base(self):
        return self.measured.line.base

    @property
    def batch(self):
        """The batch of a technique that chose its own, or None."""
        batch = self.measured.line.own_batch
        return None if np.isnan(batch) else int(batch)


@dataclass(frozen=True)
class Recommendation:
    """Recipes for selected rows, None where the rows support none.

    described: the rows' common facts. says: caveats. best: the fastest measured. fastest: the
    recipe for speed. least_memory: the one for memory. ablated: whether shorter sets were measured.
    """

    described: str
    says: list
    best: Recipe | None = None
    fastest: Recipe | None = None
    least_memory: Recipe | None = None
    ablated: bool = False

    @property
    def recipes(self):
        """The recipes that there are, by name of their field."""
        recipes = {"fastest": self.fastest, "least_memory": self.least_memory}
        return {key: recipe for key, recipe in recipes.items() if recipe}


def recommend(rows, records=None):
    """Return the Recommendation for selected rows, variants included.

    records: as for `summary.summarize`. Rows of tainted runs count for losses alone.
    """
    records = records or {}
    lines = summarize(rows, records)
    sets = _measured_sets(rows, lines)
    types = {(record.get("device") or {}).get("type") for record in records.values()} - {None}
    on_cpu = types == {"cpu"} if types else rows.reserved_memory_mib.isna().all()
    problems = {name: _problem(rows, lines, name, sets, on_cpu) for name in lines.index}
    usable = {name: measured for name, measured in sets.items() if not problems[name]}
    described = selection.describe(rows)
    settings = MORE | given_settings(rows, records)
    again = make_line(target(rows), settings)
    runs = rows.run_id[rows.status == "ok"].nunique()
    tainted = runs - rows.run_id[rows.grade == "clean"].nunique()
    if not usable:
        why = f"all {runs} runs are tainted" if runs and tainted == runs else "no run is usable"
        base = selection.baseline(rows)
        if lines.status.get(base) != "ok":
            why = f"{base} was not measured, so the losses of the rest have no reference"
        return Recommendation(described, [f"nothing is recommended: {why}; {again}"])

    def recipe(measured):
        return _recipe(measured, best, sets, problems, records)

    says = [f"{tainted} of {runs} runs are tainted; their times are not used"] if tainted else []
    best = _best(usable)
    best_recipe = recipe(best)
    if max(measured.ms.count() for measured in usable.values()) < 2:
        says.append(
            "one clean round, so inconclusive: this is the fastest measured, and another round "
            f"may differ; {again}"
        )
        return Recommendation(described, says, best_recipe, best_recipe)
    fastest = recipe(_shortest(usable.values(), "ms", best))
    if fastest.to_best.low < WIDE:
        says.append(
            f"{fastest.name} may be up to {1 - fastest.to_best.low:.0%} slower than {best.name}, "
            f"by the 95% interval; measure more rounds: {again}"
        )
    if not fastest.techniques:
        says.append(f"nothing is significantly faster than {fastest.name}, so it is the recipe")
    if untried := _untried(best, usable.values()):
        ablation = make_line(f"ablate T={best.name}", settings)
        says.append(
            f"{best.name} was not measured without {' or '.join(untried)}, so a shorter recipe may "
            f"exist: {ablation}"
        )
    near = [s for s in usable.values() if (best.ms - s.ms).dropna().mean() >= np.log(NEAR)]
    lean = min(near, key=lambda measured: _mean(measured.mib - best.mib))
    least_memory = None
    if lean.mib.notna().any():
        least_memory = recipe(_shortest(near, "mib", lean))
    return Recommendation(described, says, best_recipe, fastest, least_memory, not untried)


def _measured_sets(rows, lines):
    """Return a MeasuredSet for each script and variant with clean timings, by name."""
    timed = selection.timed(rows[rows.grade == "clean"])
    ms = np.log(round_levels.step_ms(timed[timed.step_ms > 0]))
    mib = np.log(timed.groupby(["technique", "round"]).peak_memory_mib.first())
    sets = {}
    for name, line in lines.iterrows():
        techniques = variants.parts(name)
        if techniques is not None and name in ms:
            sets[name] = MeasuredSet(name, techniques, ms[name], mib[name], line)
    return sets


def _problem(rows, lines, name, sets, on_cpu):
    """Return why a script or variant cannot be recommended, or ""."""
    line = lines.loc[name]
    baseline = selection.baseline(rows)
    status = rows[rows.technique == name].groupby("round").status.first()
    bad = status[status.isin(BAD)]
    if line.status != "ok":
        return reason(line)
    if len(bad):
        return f"{bad.iloc[0].replace('_', ' ')} in round {bad.index[0]}"
    if variants.parts(name) is None:
        return "its script is missing"
    if on_cpu and _brings_in(name) & WAITS:
        return "no effect here"
    if lines.status.get(baseline) != "ok":
        return f"not measured with {baseline}"
    if line.parity == "model changed":
        return "model changed"
    if line.loss_difference.verdict in ("worse", "diverged"):
        return f"its loss: {line.loss_difference.with_verdict}"
    return "" if name in sets else grade_text(line)


def _brings_in(name):
    """Return the needs that a script has and its parent has not, or the techniques of a variant."""
    scripts = ladder.techniques()
    variant = variants.parse(name) or variants.VariantName(name, "", [])
    own = [variant.script, *(variant.techniques if variant.sign == "+" else [])]
    needs = set()
    for script in (scripts[name] for name in own if name in scripts):
        needs |= {*script.needs} - {*(scripts[script.parent].needs if script.parent else ())}
    return needs


def _best(usable):
    """Return the fastest MeasuredSet, with missing rounds balanced by least squares."""
    # The fastest of few rounds would be the luckiest, and every comparison with it inconclusive.
    most = max(measured.ms.count() for measured in usable.values())
    enough = max(min(2, most), most / 2)
    logs = {name: s.ms for name, s in usable.items() if s.ms.count() >= enough}
    logs = pd.concat(logs, names=["name", "round"]).dropna().reset_index(name="ms")
    return usable[round_levels.levels(logs["ms"], logs["name"], logs["round"]).idxmin()]


def _shortest(sets, metric, best):
    """Return the set with the fewest techniques that is not significantly worse than the best by a
    metric and whose script can be made; of several the best by the metric."""
    as_good = [s for s in sets if s.gain(best, metric).verdict in (Ratio.above, Ratio.neither)]
    target = getattr(best, metric)
    as_good.sort(key=lambda s: (len(s.techniques), _mean(getattr(s, metric) - target)))
    return next((s for s in as_good if own_names.split(s.name) or _script(s)), best)


def _mean(logs):
    return np.inf if logs.isna().all() else logs.mean()


def _script(measured):
    """Return the script or variant of a set, or None if its merges conflict."""
    try:
        return variants.find(measured.name)
    except UserError:
        return None


def _untried(best, usable):
    """Return the techniques without which the fastest script was not measured, though it can."""
    if best.name not in ladder.techniques():
        return []
    measured_sets = {measured.techniques for measured in usable}
    line = ladder.line(best.name)[1:]
    missing = [name for name in line if best.techniques - {name} not in measured_sets]
    return [name for name in missing if variants.without(name, best.name)]


def _recipe(measured, best, sets, problems, records):
    """Return the Recipe of a MeasuredSet. sets: all of them; problems: of scripts, by name."""
    is_own = own_names.split(measured.name)
    script = None if is_own else _script(measured)
    if script is None and not is_own:
        raise UserError(f"{measured.name}: its script can no longer be made")
    problems = {own_names.last(name): problem for name, problem in problems.items()}
    tried = set().union(*(s.techniques for s in sets.values()), problems) - {ladder.BASELINE}
    in_order = [n for n in (own_names.ORDER if is_own else ladder.techniques()) if n in tried]
    techniques = [name for name in in_order if name in measured.techniques]
    switch_on = {}
    no_difference = {}
    leave_out = {}
    effects = [_effect(name, measured, sets) for name in in_order]
    ratios = intervals.holm([ratio for ratio, _ in effects])
    for name, ratio, (_, pair) in zip(in_order, ratios, effects, strict=True):
        text = f"{ratio.with_verdict}{pair}"
        if name not in techniques:
            leave_out[name] = problems.get(name) or text
        elif ratio.verdict == Ratio.neither:
            no_difference[name] = text
        else:
            switch_on[name] = text
    base = sets.get(measured.line.base)
    return Recipe(
        measured=measured,
        script=script,
        own_lines=_own_lines(records, techniques),
        techniques=techniques,
        speedup=measured.gain(base) if base else Ratio(),
        to_best=measured.gain(best),
        switch_on=switch_on,
        no_difference=no_difference,
        leave_out=leave_out,
    )


def _own_lines(records, techniques):
    """Return the lines to add to a user's own script, by technique."""
    lines = {}
    for record in records.values():
        lines |= record.get("own_script", {}).get("lines", {})
    return {name: lines.get(name, []) for name in techniques}


def _effect(name, recipe, sets):
    """Return the speedup of a technique, a Ratio, in the pair of measured sets with and without it
    that is nearest to the recipe's, and the change of memory and the pair as text."""
    # Of equal sets the first counts, scripts before variants.
    by_techniques = {measured.techniques: measured for measured in reversed(sets.values())}
    pairs = []
    for techniques, with_it in by_techniques.items():
        without = by_techniques.get(techniques - {name})
        if name in techniques and without is not None and with_it.gain(without):
            pairs.append((len(techniques ^ recipe.techniques), with_it, without))
    if not pairs:
        return Ratio(), "measured only in combination"
    _, with_it, without = min(pairs, key=lambda pair: pair[0])
    more_mib = with_it.peak_mib - without.peak_mib
    memory = "" if np.isnan(more_mib) else f"; {more_mib:+,.0f} MiB"
    return with_it.gain(without), f"{memory}: {with_it.name} against {without.name}"
