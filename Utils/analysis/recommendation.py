"""The shortest set of techniques that is statistically indistinguishable from the fastest measured.

A set is the line of descent of a script or variant. Candidates are the measured sets with an
acceptable result. A candidate remains if its paired ratio to the best is not significantly slower;
the shortest is the recipe. A second recipe has the least memory within 10% of the best speed. Each
is given as a list with its evidence, as a script, and as lines for other loops.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import candidates, result_tables, round_levels
from Utils.analysis.candidates import ratio
from Utils.analysis.intervals import Ratio
from Utils.analysis.make_line import given_settings, make_line, target
from Utils.analysis.summary import summarize
from Utils.base.errors import UserError
from Utils.results import selection
from Utils.scripts import ladder, own_names, variants

NEAR = 0.9  # of the best speed, at least, for the recipe with the least memory
WIDE = 0.95  # an interval with a lower end gets a caveat
BAD = ("failed", "out_of_memory")
MORE = {"ROUNDS": 5}  # enough for an interval


@dataclass(frozen=True)
class Recipe:
    """A measured script or variant that is recommended.

    batch: of a technique that chose its own, or None. loss and parity in words. evidence: why each
    technique is in, by name. left_out: why each other one is not. own_lines: for a user's own
    script, which has no code here: the lines to add, [code, place] of each, by technique.
    """

    name: str
    code: str
    base: str
    unit: str
    techniques: list
    speedup: Ratio  # over the base
    to_best: Ratio
    peak_mib: float
    batch: int | None
    loss: str
    parity: str
    evidence: dict
    left_out: dict
    own_lines: dict


@dataclass(frozen=True)
class Recommendation:
    """Recipes for selected rows, None where the rows support none.

    described: the rows' common facts. says: caveats. best: the fastest measured. fastest: the
    recipe for speed. least_memory: the one for memory.
    """

    described: str
    says: list
    best: Recipe | None = None
    fastest: Recipe | None = None
    least_memory: Recipe | None = None

    @property
    def recipes(self):
        """The recipes that there are, by name of their field."""
        found = {"fastest": self.fastest, "least_memory": self.least_memory}
        return {key: recipe for key, recipe in found.items() if recipe}


def recommend(rows, records=None):
    """Return the Recommendation for selected rows, variants included.

    records: as for `summary.summarize`. Rows of tainted runs count for losses alone.
    """
    records = records or {}
    facts = Facts.of(rows, records)
    runs = rows.run_id[rows.status == "ok"].nunique()
    tainted = runs - rows.run_id[rows.grade == "clean"].nunique()
    described = selection.describe(rows)
    if not facts.usable:
        return Recommendation(described, [_nothing(facts, runs, tainted)])
    says = [f"{tainted} of {runs} runs are tainted; their times are not used"] if tainted else []
    counts = pd.Series({name: c.ms.count() for name, c in facts.usable.items()})
    best = _best(facts.usable, counts)
    best_recipe = facts.recipe(best, best)
    if counts.max() < 2:
        says.append(
            f"one clean round, so inconclusive: this is the fastest measured, and another round "
            f"may differ; {facts.more_rounds()}"
        )
        return Recommendation(described, says, best_recipe, best_recipe)

    fastest = facts.recipe(candidates.shortest(facts.usable.values(), "ms", best), best)
    lean = _least_memory(facts.usable.values(), best)
    least_memory = facts.recipe(lean, best) if lean else None
    says += _caveats(facts, best, fastest)
    says += _changed_scripts(rows, records, {best.name, fastest.name})
    return Recommendation(described, says, best_recipe, fastest, least_memory)


def _nothing(facts, runs, tainted):
    """Return a sentence on why nothing is recommended."""
    reason = f"all {runs} runs are tainted" if runs and tainted == runs else "no run is usable"
    if facts.lines.status.get(facts.baseline) != "ok":
        reason = f"{facts.baseline} was not measured, so the losses of the rest have no reference"
    return f"nothing is recommended: {reason}; {facts.more_rounds()}"


def _best(usable, counts):
    """Return the fastest Candidate, with missing rounds balanced by least squares."""
    # The fastest of few rounds would be the luckiest, and every comparison with it inconclusive.
    often = counts.index[counts >= max(min(2, counts.max()), counts.max() / 2)]
    logs = pd.concat({name: usable[name].ms for name in often}, names=["name", "round"])
    logs = logs.dropna().reset_index(name="ms")
    return usable[round_levels.levels(logs["ms"], logs["name"], logs["round"]).idxmin()]


def _least_memory(usable, best):
    """Return the shortest Candidate with the least memory near the best speed, None if unknown."""
    near = [c for c in usable if (best.ms - c.ms).dropna().mean() >= np.log(NEAR)]
    least = min(near, key=lambda c: candidates.mean(c.mib - best.mib))
    return candidates.shortest(near, "mib", least) if least.mib.notna().any() else None


def _caveats(facts, best, recipe):
    """Yield the caveats of the recipe for speed."""
    if recipe.to_best.low < WIDE:
        yield (
            f"{recipe.name} may be up to {1 - recipe.to_best.low:.0%} slower than {best.name}, by "
            f"the 95% interval; measure more rounds: {facts.more_rounds()}"
        )
    if not recipe.techniques:
        yield f"nothing is significantly faster than {recipe.name}, so it is the recipe"
    if best.name not in ladder.techniques():
        return
    measured_sets = {candidate.techniques for candidate in facts.usable.values()}
    untried = [
        name
        for name in ladder.line(best.name)[1:]
        if best.techniques - {name} not in measured_sets and variants.without(name, best.name)
    ]
    if untried:
        yield (
            f"{best.name} was not measured without {joined(untried)}, so a shorter recipe may "
            f"exist: {facts.more_rounds(f'ablate T={best.name}')}"
        )


def _changed_scripts(rows, records, names):
    """Yield a caveat for each script that has changed since it was measured."""
    for name in sorted(names):
        if own_names.split(name):  # its rows bear its version
            continue
        code = variants.find(name).code
        run_ids = rows.run_id[rows.technique == name].unique()
        sources = [records.get(run_id, {}).get("source") for run_id in run_ids]
        if any(source and ladder.split(source)[1] != code for source in sources):
            yield f"{name} has changed since it was measured"


@dataclass(frozen=True, eq=False)
class Facts:
    """What rows say: the summary's lines, the Candidates measured, why some cannot be recommended,
    the rest, usable, and how to run them again."""

    baseline: str
    lines: pd.DataFrame
    measured: dict
    problems: dict
    usable: dict
    target: str
    settings: dict
    own_lines: dict

    @classmethod
    def of(cls, rows, records):
        lines = summarize(rows, records)
        sets = {name: variants.parts(name) for name in lines.index}
        measured = candidates.measured(rows[rows.grade == "clean"], sets)
        problems = {}
        for name in lines.index:
            if problem := _problem(rows, lines, name, sets[name], name in measured):
                problems[name] = problem
        return cls(
            baseline=selection.baseline(rows),
            lines=lines,
            measured=measured,
            problems=problems,
            usable={name: c for name, c in measured.items() if name not in problems},
            target=target(rows),
            settings=given_settings(rows, records),
            own_lines={
                technique: lines
                for record in records.values()
                for technique, lines in record.get("own_script", {}).get("lines", {}).items()
            },
        )

    def more_rounds(self, target=None):
        """Return the command for further rounds."""
        return make_line(target or self.target, MORE | self.settings)

    def recipe(self, candidate, best):
        """Return the Recipe of a Candidate."""
        script = candidates.script_of(candidate)
        if script is None:
            raise UserError(f"{candidate.name}: its script can no longer be made")
        baseline = self.measured.get(self.baseline)
        line = self.lines.loc[candidate.name]
        problems = {own_names.last(name): problem for name, problem in self.problems.items()}
        tried = set().union(*(c.techniques for c in self.measured.values()), problems)
        tried -= candidate.techniques | {ladder.BASELINE}
        is_own = script is candidate
        in_order = own_names.ORDER if is_own else ladder.techniques()
        techniques = [name for name in in_order if name in candidate.techniques]
        return Recipe(
            name=script.name,
            code="" if is_own else script.code,
            base=self.baseline,
            unit=line.unit,
            techniques=techniques,
            speedup=ratio(baseline.ms, candidate.ms) if baseline else Ratio(),
            to_best=ratio(best.ms, candidate.ms),
            peak_mib=candidate.peak_mib,
            batch=None if np.isnan(line.own_batch) else int(line.own_batch),
            loss=line.loss_difference.with_verdict,
            parity=line.parity if isinstance(line.parity, str) else "",
            evidence={name: self._effect(name, candidate) for name in techniques},
            left_out={
                name: problems.get(name) or self._effect(name, candidate)
                for name in in_order
                if name in tried
            },
            own_lines={name: self.own_lines.get(name, []) for name in techniques},
        )

    def _effect(self, name, candidate):
        """Return the technique's effect in the measured pair that is nearest to the candidate."""
        effects = candidates.effects_of(name, self.measured)
        if not effects:
            return "measured only in combination"
        distances = [len(effect.with_it.techniques ^ candidate.techniques) for effect in effects]
        nearest = effects[int(np.argmin(distances))]
        more_mib = nearest.with_it.peak_mib - nearest.without.peak_mib
        memory = "" if np.isnan(more_mib) else f"; {more_mib:+,.0f} MiB"
        pair = f"{nearest.with_it.name} against {nearest.without.name}"
        return f"{nearest.ratio.with_verdict}{memory}: {pair}"


def _problem(rows, lines, name, techniques, is_clean):
    """Return why a script or variant cannot be recommended, or ""."""
    line = lines.loc[name]
    baseline = selection.baseline(rows)
    status = rows[rows.technique == name].groupby("round").status.first()
    bad = status[status.isin(BAD)]
    if line.status != "ok":
        return result_tables.reason(line)
    if len(bad):
        return f"{bad.iloc[0].replace('_', ' ')} in round {bad.index[0]}"
    if techniques is None:
        return "its script is missing"
    if lines.status.get(baseline) != "ok":
        return f"not measured with {baseline}"
    if line.parity == "model changed":
        return "model changed"
    if line.loss_difference.verdict in ("worse", "diverged"):
        return f"its loss: {line.loss_difference.with_verdict}"
    return "" if is_clean else result_tables.grade_text(line)


def joined(names):
    """Join names as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
