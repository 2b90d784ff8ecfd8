"""The shortest measured set of techniques that is statistically indistinguishable from the fastest,
and the one with the least memory among those near its speed.

A set is the line of descent of a script or variant.
"""

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from Utils.analysis import intervals
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base import command_line
from Utils.base.errors import UserError
from Utils.base.text import number
from Utils.results import selection
from Utils.scripts import ladder, own_names, variants
from Utils.scripts.ladder import BASELINE, Technique

NEAR = 0.9  # of the best speed, at least, for the recipe with the least memory
FASTEST = "Recipe: the smallest measured set statistically indistinguishable from the fastest"
LEAST_MEMORY = f"Least memory within {1 - NEAR:.0%} of the best speed"
IN, NO_DIFFERENCE, OUT = "switch on", Ratio.neither, "leave out"
WIDE = 0.95  # an interval with a lower end gets a caveat
ROUNDS = 5  # enough for an interval
# Settings of a run that are repeated where its command has them.
REPEATED = ("batch_size", "seq_len", "model", "dataset", "steps", "warmup", "min_seconds")
# Needs of scripts that gain a wait for the device: on a CPU, which has none, they have no effect.
WAITS = {"device_queue", "copy_engine", "device_memory", "cuda_graphs"}


@dataclass(frozen=True, eq=False)
class MeasuredSet:
    """A script or variant with clean timings.

    script: None of a user's own script. ms, mib: logarithms of its step time (for as many tokens)
    and peak memory, Series by round. line: of the summary. speedup: Ratio over the base.
    """

    name: str
    techniques: frozenset
    script: Technique | None
    ms: pd.Series
    mib: pd.Series
    line: pd.Series
    speedup: Ratio

    @property
    def peak_mib(self):
        return float(np.exp(self.mib.median()))

    def gain(self, reference, metric="ms"):
        """Return the Ratio of a reference's time, or memory ("mib"), to that of this set."""
        return intervals.ratio_of(getattr(reference, metric) - getattr(self, metric))


@dataclass(frozen=True, eq=False)
class Recipe(MeasuredSet):
    """A measured set that is recommended, its techniques a list in the ladder's order.

    own_lines: the lines to add to a user's own script. to_best: Ratio over the fastest measured
    set. evidence: what was measured of each technique that was tried, texts by technique under IN,
    NO_DIFFERENCE (the set has these too) and OUT.
    """

    own_lines: list
    to_best: Ratio
    evidence: dict


@dataclass(frozen=True)
class Recommendation:
    """Recipes for selected rows by title: FASTEST, and LEAST_MEMORY where it is another set.

    described: the rows' common facts. says: caveats. best: the fastest MeasuredSet.
    """

    described: str
    says: list
    best: MeasuredSet | None = None
    recipes: dict = field(default_factory=dict)

    @property
    def fastest(self):
        return self.recipes.get(FASTEST)


def make_line(rows, records, rounds, target=""):
    """Return the make command that repeats the runs of rows with the newest one's settings."""
    if not target:
        techniques = {own_names.last(name) for name in rows.technique.unique()}
        target = "everything" if techniques & ladder.beyond() else "all"
        target = "ablate" if selection.variants_in(rows) else target
        base = selection.baseline(rows)
        target += f" BASE={base}" if base != BASELINE else ""
    newest = records.get(rows.run_id[rows.status == "ok"].max(), {})
    words = " ".join(map(str, newest.get("command") or ()))
    settings = dict(re.findall(r"--([a-z-]+)[= ](\S+)", words)) | {"rounds": str(rounds)}
    defaults = command_line.defaults()
    parts = ["make", target]
    for name in ("rounds", *REPEATED):
        value = settings.get(name.replace("_", "-"), str(defaults[name]))
        if value != str(defaults[name]):
            parts.append(f"{name.upper()}={shlex.quote(value)}")
    return " ".join(parts)


@selection.as_run
def recommend(rows, records=None):
    """Return the Recommendation for selected rows, variants included. records: by run_id."""
    records = records or {}
    lines = summarize(rows, records)
    sets = _measured_sets(rows, lines)
    problems = {name: _problem(rows, lines, name, sets) for name in lines.index}
    usable = {name: measured for name, measured in sets.items() if not problems[name]}
    described = selection.describe(rows)
    again = make_line(rows, records, ROUNDS)
    if not usable:
        name, problem = next(iter(problems.items()))
        return Recommendation(described, [f"nothing is recommended: {name}: {problem}; {again}"])

    runs = rows.run_id[rows.status == "ok"].nunique()
    tainted = runs - rows.run_id[rows.grade == "clean"].nunique()
    says = [f"{tainted} of {runs} runs are tainted; their times are not used"] if tainted else []
    best = _best(usable)
    if max(measured.ms.count() for measured in usable.values()) < 2:
        says.append(
            "one clean round, so inconclusive: this is the fastest measured, and another round "
            f"may differ; {again}"
        )
    fastest = _recipe(_shortest(usable.values(), "ms", best), best, sets, problems, records)
    if fastest.to_best.low < WIDE:
        says.append(
            f"{fastest.name} may be up to {1 - fastest.to_best.low:.0%} slower than {best.name}, "
            f"by the 95% interval; measure more rounds: {again}"
        )
    if not fastest.techniques:
        says.append(f"nothing is significantly faster than {fastest.name}, so it is the recipe")
    line = ladder.line(best.name)[1:] if best.name in ladder.techniques() else []
    tried = {measured.techniques for measured in usable.values()}
    untried = [name for name in line if best.techniques - {name} not in tried]
    if untried := [name for name in untried if variants.without([name], best.name)]:
        says.append(
            f"{best.name} was not measured without {' or '.join(untried)}, so a shorter recipe may "
            f"exist: {make_line(rows, records, ROUNDS, f'ablate T={best.name}')}"
        )
    recipes = {FASTEST: fastest}
    near = [s for s in usable.values() if (best.ms - s.ms).mean() >= np.log(NEAR)]
    if near := [s for s in near if s.mib.notna().any()]:
        lean = min(near, key=lambda measured: (measured.mib - best.mib).mean())
        lean = _shortest(near, "mib", lean)
        if lean.name != fastest.name:
            recipes[LEAST_MEMORY] = _recipe(lean, best, sets, problems, records)
    return Recommendation(described, says, best, recipes)


def _measured_sets(rows, lines):
    """Return a MeasuredSet for each script and variant with clean timings, by name."""
    timed = selection.timed(rows[rows.grade == "clean"])
    ms = np.log(intervals.step_ms(timed[timed.step_ms > 0]))
    mib = np.log(timed.groupby(["technique", "round"]).peak_memory_mib.first())
    sets = {}
    for name, line in lines.iterrows():
        techniques = variants.parts(name)
        if techniques is None or name not in ms:
            continue
        script = None
        if not own_names.split(name):
            with suppress(UserError):  # its merges conflict since a script was edited
                script = variants.find(name)
        speedup = intervals.ratio_of(ms[line.base] - ms[name]) if line.base in ms else Ratio()
        sets[name] = MeasuredSet(name, techniques, script, ms[name], mib[name], line, speedup)
    return sets


def _problem(rows, lines, name, sets):
    """Return why a script or variant cannot be recommended, or ""."""
    line = lines.loc[name]
    status = rows[rows.technique == name].groupby("round").status.first()
    bad = status[status.isin(["failed", "out_of_memory"])]
    if line.status != "ok":
        return line.reason
    if len(bad):
        return f"{bad.iloc[0].replace('_', ' ')} in round {bad.index[0]}"
    if not own_names.split(name) and name in sets and not sets[name].script:
        return "its script can no longer be made"
    on_cpu = rows.reserved_memory_mib.isna().all()
    if on_cpu and _waiting() & {*name.partition("-")[0].split("+")}:
        return "no effect here"
    if lines.status.get(line.base) != "ok":
        return f"not measured with {line.base}"
    if line.parity in ("model changed", "another optimizer"):
        return line.parity
    if line.loss_difference.verdict in ("worse", "diverged"):
        return f"its loss: {line.loss_difference.with_verdict}"
    return "" if name in sets else line.quality


def _waiting():
    """Return the techniques that gain a wait for the device."""
    scripts = ladder.techniques()
    of_parent = {name: scripts[s.parent].needs if s.parent else () for name, s in scripts.items()}
    return {name for name, s in scripts.items() if WAITS & {*s.needs} - {*of_parent[name]}}


def _best(usable):
    """Return the fastest MeasuredSet, with missing rounds balanced by least squares."""
    # The fastest of few rounds would be the luckiest, and every comparison with it inconclusive.
    most = max(measured.ms.count() for measured in usable.values())
    enough = max(min(2, most), most / 2)
    logs = {name: s.ms for name, s in usable.items() if s.ms.count() >= enough}
    logs = pd.concat(logs, names=["name", "round"]).dropna().reset_index(name="ms")
    return usable[intervals.levels(logs["ms"], logs["name"], logs["round"]).idxmin()]


def _shortest(sets, metric, best):
    """Return the set with the fewest techniques that is not significantly worse than the best by a
    metric; of several the best by the metric."""
    as_good = [s for s in sets if s.gain(best, metric).verdict in (Ratio.above, Ratio.neither)]
    excess = {s: (getattr(s, metric) - getattr(best, metric)).mean() for s in as_good}
    return min(as_good, key=lambda s: (len(s.techniques), excess[s]), default=best)


def _recipe(measured, best, sets, problems, records):
    """Return the Recipe of a MeasuredSet. sets: all of them; problems: of scripts, by name."""
    problems = {own_names.last(name): problem for name, problem in problems.items()}
    tried = set().union(*(s.techniques for s in sets.values()), problems) - {BASELINE}
    order = ladder.techniques() if measured.script else own_names.ORDER
    tried = [name for name in order if name in tried]
    techniques = [name for name in tried if name in measured.techniques]
    switches = {}
    for record in records.values():
        switches |= record.get("own_script", {}).get("lines", {})
    own_lines = [
        f"{place or 'the loop'}: {code}  # {name}"
        for name in techniques
        for code, place in switches.get(name, [])
    ]
    ratios = {}
    texts = {}
    # Of equal sets the first counts, scripts before variants.
    by_techniques = {s.techniques: s for s in reversed(sets.values())}
    for name in tried:
        with_it = [s for s in by_techniques.values() if name in s.techniques]
        pairs = [(s, by_techniques.get(s.techniques - {name})) for s in with_it]
        pairs = [(s, without) for s, without in pairs if without and s.gain(without)]
        ratios[name] = Ratio()
        texts[name] = "measured only in combination"
        if pairs:  # that which is nearest to the recipe
            s, without = min(pairs, key=lambda pair: len(pair[0].techniques ^ measured.techniques))
            more_mib = number(s.peak_mib - without.peak_mib, "+,.0f")
            memory = f"; {more_mib} MiB" if more_mib else ""
            ratios[name] = s.gain(without)
            texts[name] = f"{memory}: {s.name} against {without.name}"
    evidence = {IN: {}, NO_DIFFERENCE: {}, OUT: {}}
    for name, ratio in zip(tried, intervals.holm(ratios.values()), strict=True):
        text = f"{ratio.with_verdict}{texts[name]}"
        if name in techniques:
            evidence[NO_DIFFERENCE if ratio.verdict == NO_DIFFERENCE else IN][name] = text
        else:
            evidence[OUT][name] = problems.get(name) or text
    facts = vars(measured) | {"techniques": techniques}
    return Recipe(**facts, own_lines=own_lines, to_best=measured.gain(best), evidence=evidence)
