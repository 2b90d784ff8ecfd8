"""The shortest measured set of techniques (the line of descent of a script or variant) that is
statistically indistinguishable from the fastest, and the one with the least memory among those near
its speed; as text, lines to copy and a script.
"""

import re
import shlex
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from Utils.analysis import intervals
from Utils.analysis.intervals import Ratio
from Utils.analysis.lines_to_copy import lines_of
from Utils.base import command_line
from Utils.base.errors import UserError
from Utils.base.text import number
from Utils.results import selection
from Utils.results.study import Study
from Utils.scripts import variants
from Utils.scripts.ladder import Technique

NEAR = 0.9  # of the best speed, at least, for the recipe with the least memory
FASTEST = "Recipe: the smallest measured set statistically indistinguishable from the fastest"
LEAST_MEMORY = f"Least memory within {1 - NEAR:.0%} of the best speed"
IN, NO_DIFFERENCE, OUT = "switch on", Ratio.neither, "leave out"
WIDE = 0.95  # an interval with a lower end gets a caveat
ROUNDS = 5  # enough for an interval
# Settings of a run that are repeated where its command has them.
REPEATED = ("rounds", "batch_size", "seq_len", "model", "dataset", "steps", "warmup", "min_seconds")
# Needs of scripts that gain a wait for the device: on a CPU, which has none, they have no effect.
WAITS = {"device_queue", "copy_engine", "device_memory", "cuda_graphs"}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A measured set that is recommended, its techniques in the ladder's order.

    script: None of a user's own. line: of the summary. speedup, to_best: Ratios over the base and
    over the fastest set. evidence: texts by technique that was tried, under IN, NO_DIFFERENCE (the
    set has these too) and OUT. lines: to copy, lists by what they are for. pair: the lines of the
    base and of the set from the clean rounds that both have, None without techniques.
    """

    name: str
    techniques: list
    script: Technique | None
    line: pd.Series
    speedup: Ratio
    to_best: Ratio
    sentences: list
    evidence: dict
    lines: dict
    pair: pd.DataFrame | None = None


@dataclass(frozen=True)
class Recommendation:
    """Recipes for selected rows by title: FASTEST, and LEAST_MEMORY where it is another set.

    described: the rows' common facts. says: caveats. best: name of the fastest measured set.
    """

    described: str
    says: list
    best: str = ""
    recipes: dict = field(default_factory=dict)

    @property
    def fastest(self):
        return self.recipes.get(FASTEST)

    @property
    def headline(self):
        """The recipe for speed in a sentence; "" where nothing is faster than the baseline."""
        recipe = self.fastest
        if not recipe or not recipe.speedup.value > 1 or recipe.speedup.verdict == Ratio.neither:
            return ""
        facts = [f"{recipe.name}, {recipe.speedup} over {recipe.line.base}", _mib(recipe.line)]
        verdict = recipe.line.loss_difference.verdict
        facts += [f"loss {verdict}"] if verdict else []
        return f"{FASTEST}: {', '.join(facts)}."


def make_line(chosen, rounds, target=""):
    """Return the make command that repeats the runs of a study with the newest one's settings."""
    if not target:
        target = "everything" if chosen.beyond() else "all"
        target = "ablate" if chosen.names("ablation") else target
        target += "" if chosen.is_ours else f" BASE={chosen.base}"
    rows = chosen.all_rows
    newest = chosen.records.get(rows.run_id[rows.status == "ok"].max(), {})
    words = " ".join(map(str, newest.get("command") or ()))
    settings = dict(re.findall(r"--([a-z-]+)[= ](\S+)", words)) | {"rounds": str(rounds)}
    parts = ["make", target]
    for name in REPEATED:
        default = str(command_line.OF_A_RUN[name].default)
        value = settings.get(name.replace("_", "-"), default)
        if value != default:
            parts.append(f"{name.upper()}={shlex.quote(value)}")
    return " ".join(parts)


@dataclass(frozen=True)
class _Measured:
    """What recipes are chosen from: figures of a study's clean rounds.

    lines: of the Summary, an ablation's too. ms: milliseconds a step by round and technique. mib:
    peak memory, the same. sets: the techniques of each script with timings. problems: why a script
    cannot be recommended, or "".
    """

    study: Study
    lines: pd.DataFrame
    ms: pd.DataFrame
    mib: pd.DataFrame
    sets: dict
    problems: dict


def _measured(summary):
    chosen = summary.study
    rows = chosen.all_rows
    timed = selection.timed(rows[rows.grade == "clean"])
    ms = intervals.step_ms(timed[timed.step_ms > 0]).unstack("technique")
    mib = timed.groupby(["technique", "round"]).peak_memory_mib.first().unstack("technique")
    lines = summary.all_lines.assign(peak_memory_mib=np.exp(np.log(mib).median()))
    sets = {name: chosen.techniques(name) for name in lines.index if name in ms}
    statuses = rows.groupby(["technique", "round"]).status.first()
    problems = {name: _problem(chosen, statuses[name], lines, name, sets) for name in lines.index}
    return _Measured(chosen, lines, ms, mib, sets, problems)


def recommend(summary):
    """Return the Recommendation for a study, an ablation included."""
    measured = _measured(summary)
    chosen = measured.study
    ms = measured.ms
    sets = measured.sets
    rows = chosen.all_rows
    usable = [name for name in measured.lines.index if not measured.problems[name]]
    described = selection.describe(rows)
    again = make_line(chosen, ROUNDS)
    if not usable:
        name, problem = next(iter(measured.problems.items()))
        return Recommendation(described, [f"nothing is recommended: {name}: {problem}; {again}"])

    # Missing rounds are balanced by least squares. The fastest of few rounds would be the luckiest,
    # and every comparison with it inconclusive.
    rounds = ms[usable].count()
    fewest = max(min(2, rounds.max()), rounds.max() / 2)
    logs = ms[rounds.index[rounds >= fewest]].melt(ignore_index=False).dropna().reset_index()
    best = intervals.levels(np.log(logs["value"]), logs["technique"], logs["round"]).idxmin()
    titles = {_shortest(sets, ms[usable], best): FASTEST}

    # The one with the least memory among those near the best speed.
    gains = np.log(ms[usable].rdiv(ms[best], axis=0)).mean()
    near = measured.mib[gains.index[gains >= np.log(NEAR)]].dropna(axis=1, how="all")
    if near.size:
        leanest = np.log(near.div(measured.mib[best], axis=0)).mean().idxmin()
        titles.setdefault(_shortest(sets, near, leanest), LEAST_MEMORY)
    recipes = {title: _recipe(measured, name, best) for name, title in titles.items()}
    fastest = recipes[FASTEST]

    # Caveats.
    runs = rows.run_id[rows.status == "ok"].nunique()
    tainted = runs - rows.run_id[rows.grade == "clean"].nunique()
    says = [f"{tainted} of {runs} runs are tainted; their times are not used"] if tainted else []
    if rounds.max() < 2:
        says.append(
            "one clean round, so inconclusive: this is the fastest measured, and another round "
            f"may differ; {again}"
        )
    if fastest.to_best.low < WIDE:
        says.append(
            f"{fastest.name} may be up to {1 - fastest.to_best.low:.0%} slower than {best}, "
            f"by the 95% interval; measure more rounds: {again}"
        )
    if not fastest.techniques:
        says.append(f"nothing is significantly faster than {fastest.name}, so it is the recipe")
    untried = _untried(measured, best, usable)
    if untried:
        says.append(
            f"{best} was not measured without {' or '.join(untried)}, so a shorter recipe may "
            f"exist: {make_line(chosen, ROUNDS, f'ablate T={best}')}"
        )
    return Recommendation(described, says, best, recipes)


def _untried(measured, best, usable):
    """Return the techniques of the best script without which it can be made, but was not run."""
    ladder = measured.study.ladder
    if not measured.study.is_ours or best not in ladder.scripts:
        return []
    tried = [measured.sets[name] for name in usable]
    line = ladder.line(best)[1:]
    untried = [name for name in line if measured.sets[best] - {name} not in tried]
    return [name for name in untried if variants.without([name], best, ladder)]


def _problem(chosen, status, lines, name, sets):
    """Return why a script or variant cannot be recommended, or "". status: its, by round."""
    line = lines.loc[name]
    bad = status[status.isin(["failed", "out_of_memory"])]
    if line.status != "ok":
        return line.reason
    if len(bad):
        return f"{bad.iloc[0].replace('_', ' ')} in round {bad.index[0]}"
    if chosen.is_ours:
        try:
            variants.find(name, chosen.ladder)
        except UserError:  # its merges conflict since a script was edited
            return "its script can no longer be made"

    on_cpu = chosen.all_rows.reserved_memory_mib.isna().all()
    if on_cpu and any(_waits(technique, chosen) for technique in _added(chosen, name)):
        return "no effect here"
    if lines.status.get(line.base) != "ok":
        return f"not measured with {line.base}"
    if line.parity in ("model changed", "another optimizer"):
        return line.parity
    if line.loss_difference.verdict in ("worse", "diverged"):
        return f"its loss: {line.loss_difference.with_verdict}"
    return "" if name in sets else line.quality


def _added(chosen, name):
    """Return what a script adds; of one that leaves techniques out, what its parent adds."""
    change = chosen.change(chosen.parent(name) if chosen.leaves_out(name) else name)
    return [technique for sign, technique in change if sign == "+"]


def _waits(technique, chosen):
    """Return whether a technique gains a wait for the device."""
    scripts = chosen.ladder.scripts
    if technique not in scripts:
        return False
    script = scripts[technique]
    parent = scripts.get(script.parent)
    return bool(WAITS & {*script.needs} - {*(parent.needs if parent else ())})


def _shortest(sets, values, best):
    """Return the smallest set not significantly worse than the best. values: by round and name."""
    ratios = {name: intervals.speedup(values[best], values[name]) for name in values}
    as_good = [name for name in values if ratios[name].verdict in (Ratio.above, Ratio.neither)]
    excess = np.log(values.div(values[best], axis=0)).mean()
    return min(as_good, key=lambda name: (len(sets[name]), excess[name]), default=best)


def _recipe(measured, name, best):
    """Return the Recipe of a measured script or variant. best: the fastest."""
    chosen = measured.study
    ms = measured.ms
    line = measured.lines.loc[name]
    script = variants.find(name, chosen.ladder) if chosen.is_ours else None
    tried = _tried(measured)
    techniques = [technique for technique in tried if technique in measured.sets[name]]
    speedup = intervals.speedup(ms[line.base], ms[name]) if line.base in ms else Ratio()
    to_best = intervals.speedup(ms[best], ms[name])
    batch = number(line.own_batch, ".0f")

    sentences = [f"{name}: {_mib(line)} at the peak."]
    if techniques:
        sentences.append(f"Against {line.base}: {str(speedup) or 'not known'}.")
    if name != best:
        speedup_of_best = intervals.speedup(ms[line.base], ms[best])
        text = f"Against the fastest, {best} with {speedup_of_best}: {to_best.with_verdict}."
        sentences.append(text)
    difference = line.loss_difference.with_verdict
    if difference:
        sentences.append(f"Loss minus the baseline's: {difference} ({line.parity}).")
    if batch:
        fewer = "fewer updates for as many tokens, which changes training"
        sentences.append(f"It trains on {batch} sequences a step: {fewer}.")

    if script:
        to_copy = lines_of(techniques, chosen.ladder, batch or "...")
    else:
        to_copy = {"your script": _own_lines(techniques, chosen.records) or ["none"]}
    return Recipe(
        name=name,
        techniques=techniques,
        script=script,
        line=line,
        speedup=speedup,
        to_best=to_best,
        sentences=sentences,
        evidence=_evidence(measured, name, tried),
        lines=to_copy,
        pair=_in_common_rounds(measured, name) if techniques else None,
    )


def _in_common_rounds(measured, name):
    """Return the lines of a script's base and of the script, from the clean rounds of both."""
    rows = selection.timed(measured.study.all_rows)
    base = measured.lines.base[name]
    common_ms = measured.ms.dropna(subset=[base, name]) if base in measured.ms else None
    if common_ms is None or common_ms.empty:
        return None

    rows = rows[(rows.grade == "clean") & rows["round"].isin(common_ms.index)]
    lines = {}
    for each in (base, name):
        line = measured.lines.loc[each].copy()
        steps = rows[rows.technique == each]
        line["rounds"] = len(common_ms)
        rate_ms = line.tokens_per_second * line.step_ms
        line["step_ms"] = intervals.typical(common_ms[each])
        line["tokens_per_second"] = rate_ms / line.step_ms
        line["p20_ms"], line["p80_ms"] = np.percentile(intervals.scaled(steps).step_ms, [20, 80])
        line["peak_memory_mib"] = steps.groupby("run_id").peak_memory_mib.first().median()
        line["loss"] = intervals.losses(steps).mean()
        line["speedup"] = intervals.speedup(common_ms[base], common_ms[each])
        lines[each] = line
    return pd.DataFrame(lines.values(), list(lines), measured.lines.columns)


def _tried(measured):
    """Return the techniques that have been tried, in the order of the ladder."""
    chosen = measured.study
    tried = set().union(*measured.sets.values())
    in_order = []
    for name in measured.lines.index:
        added = [technique for sign, technique in chosen.change(name) if sign == "+"]
        tried |= {*added}
        in_order += added
    order = chosen.ladder.scripts if chosen.is_ours else dict.fromkeys(in_order)
    return [technique for technique in order if technique in tried]


def _own_lines(techniques, records):
    """Return the lines to add to a user's script, with their places, as its runs saw them."""
    switches = {}
    for record in records.values():
        switches |= record.get("own_script", {}).get("lines", {})
    return [
        f"{where or 'the loop'}: {code}  # {technique}"
        for technique in techniques
        for code, where in switches.get(technique, [])
    ]


def _evidence(measured, name, tried):
    """Return the evidence of a Recipe: for each technique, two sets that differ in it alone.

    Of such pairs the one nearest to the recipe counts.
    """
    ms = measured.ms
    peak_mib = measured.lines.peak_memory_mib
    ratios = []
    texts = []
    for technique in tried:
        pair = _nearest_pair(measured.sets, ms, name, technique)
        if pair is None:
            ratios.append(Ratio())
            texts.append("measured only in combination")
            continue
        without, with_it = pair
        more_mib = number(peak_mib[with_it] - peak_mib[without], "+,.0f")
        memory = f"; {more_mib} MiB" if more_mib else ""
        ratios.append(intervals.speedup(ms[without], ms[with_it]))
        texts.append(f"{memory}: {with_it} against {without}")

    evidence = {IN: {}, NO_DIFFERENCE: {}, OUT: {}}
    for technique, ratio, text in zip(tried, intervals.holm(ratios), texts, strict=True):
        title = NO_DIFFERENCE if ratio.verdict == NO_DIFFERENCE else IN
        title = title if technique in measured.sets[name] else OUT
        problem = _problem_of(technique, measured) if title == OUT else ""
        evidence[title][technique] = problem or f"{ratio.with_verdict}{text}"
    return evidence


def _nearest_pair(sets, ms, name, technique):
    """Return the scripts (without it, with it) nearest to the recipe `name`, or None.

    Of equal sets the first counts, scripts before variants.
    """
    name_of_set = {techniques: key for key, techniques in reversed(sets.items())}
    nearest = sorted(name_of_set.values(), key=lambda key: len(sets[key] ^ sets[name]))
    for with_it in nearest:
        without = name_of_set.get(sets[with_it] - {technique}, with_it)
        if without != with_it and intervals.speedup(ms[without], ms[with_it]):
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


def _mib(line):
    return f"{number(line.peak_memory_mib, ',.0f') or 'unknown'} MiB"
