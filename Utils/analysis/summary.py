"""Selected rows -> the figures of each script, once for all tables, charts, pages and the recipe.

Times, and so their ratios, are from one fit of all runs.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from Utils.analysis import intervals, record_figures
from Utils.analysis.figures import ScriptFigures
from Utils.analysis.levels import Levels, levels_of
from Utils.analysis.losses import losses_of
from Utils.analysis.problems import problem_of
from Utils.analysis.script_runs import (
    ScriptRuns,
    failure_of,
    notes_of,
    quality_of,
    runs_of,
    warm_up_ms,
)
from Utils.results import selection
from Utils.results.study import Study

PERCENTILES = [0.2, 0.5, 0.8]  # quantiles of a run's steps


@dataclass(frozen=True, eq=False)
class Summary:
    """Figures of a Study.

    scripts: by name, in ladder order; those that only an ablation has are last.
    levels: give all ratios of the study.
    runs: each script's runs, by name.
    """

    study: Study
    levels: Levels
    runs: dict[str, ScriptRuns]
    scripts: dict[str, ScriptFigures]

    @property
    def shown(self) -> list[ScriptFigures]:
        """The figures of the scripts that tables and charts show."""
        return [script for script in self.scripts.values() if script.in_table]

    @property
    def most_rounds(self) -> int:
        """The most rounds with timings of a script that is shown."""
        return max(script.rounds for script in self.shown)


def summarize(chosen: Study) -> Summary:
    """Return the Summary of a study. Figures from records are unknown without records."""
    rows = chosen.all_rows
    runs = {name: runs_of(part, chosen.records) for name, part in rows.groupby("technique")}
    levels = levels_of(selection.timed(rows), chosen.records, chosen.base, _families(chosen))

    # The scripts of an ablation follow those of the table.
    in_table = {*chosen.rows.technique}
    names = sorted(chosen.order, key=lambda name: name not in in_table)
    labels = _labels(chosen, names[: len(in_table)])

    # Each script by itself, and then what depends on all.
    alone = {name: _figures_of(chosen, name, runs, levels) for name in names}
    scripts = {}
    for above, name in zip([None, *names], names, strict=False):
        script = alone[name]
        parent = script.parent
        scripts[name] = replace(
            script,
            label=labels.get(name, name),
            branches_from="" if parent == above else labels.get(parent, parent),
            break_even_steps=_break_even_steps(script, alone, runs),
            problem=problem_of(script, alone.get(chosen.base), chosen),
        )
    return Summary(chosen, levels, runs, scripts)


def _families(chosen):
    """Return the sets of pairs of scripts whose ratios have intervals that hold together.

    The first is the table's two columns. The second has the ratios of variants, and those of two
    sets that differ in one technique, of which ablations and recipes are.
    """
    names = [*chosen.identities]
    scripts = [name for name in names if name not in chosen.names("ablation")] or names

    def columns_of(lines):
        pairs = {frozenset((chosen.parent(name), name)) for name in lines if chosen.parent(name)}
        return pairs | {frozenset((chosen.base, name)) for name in lines if name != chosen.base}

    techniques = {name: chosen.techniques(name) for name in names}
    neighbours = {
        frozenset(pair)
        for pair in itertools.combinations(names, 2)
        if len(techniques[pair[0]] ^ techniques[pair[1]]) == 1
    }
    table = columns_of(scripts)
    return table, (columns_of(names) | neighbours) - table


def _labels(chosen, names):
    """Return names for a table or chart: `+technique` on a user's script, if that is unique."""
    own_names = chosen.names("own")
    labels = dict(zip(names, names, strict=True))
    for name in names:
        change = chosen.change(name)
        if change and name in own_names and chosen.parent(name) in names:
            _, technique = change[0]
            labels[name] = f"+{technique}"

    counts = Counter(labels.values())
    return {name: label if counts[label] == 1 else name for name, label in labels.items()}


def _figures_of(chosen, name, runs, levels):
    """Return the figures of a script, without those that depend on others."""
    script = runs[name]
    last = script.rows.iloc[-1]
    by_round = script.rows.groupby("round")[["status", "note", "grade", "run_id"]].first()
    timed_rounds = by_round[by_round.status == "ok"]
    speedup = levels.ratio(chosen.base, name)
    parent_speedup = levels.ratio(chosen.parent(name), name)
    losses = losses_of(chosen, name, runs)

    # Times, for the requested batch. Without timings all are NaN.
    step_ms = levels.step_ms(name)
    steps = intervals.scaled(script.timed)
    by_run = steps.groupby("run_id", observed=True)
    logs = np.log(by_run.step_ms.quantile(PERCENTILES)).groupby(level=1).mean()
    logs = logs.reindex(PERCENTILES)
    p20_ms, _, p80_ms = step_ms * np.exp(logs - logs[0.5])
    mean_ms = steps.step_ms.mean() * step_ms / np.exp(logs[0.5])
    tokens_per_second = last.requested_batch_size * last.seq_len / mean_ms * 1e3
    of_runs = by_run[["first_step_s", "peak_memory_mib"]].first().median()
    scales = script.timed.requested_batch_size / script.timed.batch_size

    medians = record_figures.medians_of(script.records)
    return ScriptFigures(
        name=name,
        parent=chosen.parent(name),
        base=chosen.base,
        techniques=chosen.techniques(name),
        in_table=chosen.rows.technique.eq(name).any(),
        unit=last.unit,
        status="ok" if len(timed_rounds) else by_round.status.iloc[-1],
        rounds=len(timed_rounds),
        failure=failure_of(by_round),
        quality=quality_of(by_round, chosen.records),
        notes=_notes(chosen, name, by_round, levels, parent_speedup, script.training),
        step_ms=step_ms,
        p20_ms=p20_ms,
        p80_ms=p80_ms,
        tokens_per_second=tokens_per_second,
        first_step_s=of_runs.first_step_s,
        own_batch=last.batch_size if scales.ne(1).any() else math.nan,
        peak_memory_mib=of_runs.peak_memory_mib,
        recorded=medians,
        compiled=record_figures.compiled(script.records, medians),
        limits=record_figures.limits_of(
            script.records, medians, last.model, scales.min(), step_ms, tokens_per_second
        ),
        speedup=speedup,
        parent_speedup=parent_speedup,
        loss=losses.loss,
        loss_difference=losses.difference,
        parity=losses.parity,
        training=script.training,
    )


def _notes(chosen, name, by_round, levels, parent_speedup, training):
    """Return notes of the runs of a script, or by how much an emulated one is slower."""
    technique = chosen.technique(name)
    if technique and technique.is_emulated and parent_speedup:
        return (f"emulated: {1 / parent_speedup.value:,.0f} times slower here",)
    notes = notes_of(by_round)
    reasons = training.get("reasons", []) + training.get("remarks", [])
    if reasons:
        notes.append(f"{training['kind']}: {'; '.join(reasons)}")
    if parent_speedup and levels.is_alone(name):
        notes.append("ran alone, not in turns: its ratios have no interval")
    return tuple(notes)


def _break_even_steps(script, scripts, runs):
    """Return the steps after which a compiled script has saved the extra cost of its warm-up.

    inf for never. NaN without compilation, if there is no detectable difference to the parent, or
    if that is compiled too. One round shows no difference.
    """
    parent = scripts.get(script.parent)
    speedup = script.parent_speedup
    if not script.compiled or not speedup or parent.compiled:
        return math.nan
    if script.rounds > 1 and not speedup.is_different:
        return math.nan
    saved_ms = parent.step_ms - script.step_ms
    more_ms = warm_up_ms(runs[script.name]) - warm_up_ms(runs[parent.name])

    return np.ceil(max(0, more_ms) / saved_ms) if saved_ms > 0 else math.inf
