"""Selected rows -> the figures of each script, once for all tables, charts, pages and the recipe.

Ratios are over rounds: a quotient of a script's time and that of a base or a parent in the same
round, which met the same machine.
"""

from argparse import Namespace
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from Utils.analysis import intervals, run_patterns
from Utils.analysis.figures import ScriptFigures
from Utils.analysis.intervals import Estimate, Ratio
from Utils.analysis.levels import Levels, levels_of
from Utils.analysis.losses import losses_of
from Utils.analysis.problems import problem_of
from Utils.analysis.script_runs import ScriptRuns
from Utils.base.text import plural
from Utils.results import rows_file, selection, study
from Utils.results.study import Study


@dataclass(frozen=True, eq=False)
class Summary:
    """Figures of a Study.

    scripts: by name, in ladder order; those that only an ablation has are last.
    levels: from which all ratios of the study are.
    """

    study: Study
    levels: Levels
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
    by_name = rows.groupby("technique")
    runs = {name: ScriptRuns(rows_of_script, chosen.records) for name, rows_of_script in by_name}
    parents = {name: chosen.parent(name) for name in chosen.order}
    levels = levels_of(selection.timed(rows), parents, chosen.base)

    # The scripts of an ablation follow those of the table.
    in_table = {*chosen.rows.technique}
    names = sorted(chosen.order, key=lambda name: name not in in_table)
    labels = _labels(chosen, names[: len(in_table)])

    # Ratios and losses.
    speedups = {name: levels.ratio(chosen.base, name) for name in names}
    parent_speedups = {name: levels.ratio(parents[name], name) for name in names}
    losses = {name: _losses(chosen, name, runs) for name in names}
    notes = _notes(chosen, levels, runs, speedups, parent_speedups)

    # Holm corrects the verdicts of a column.
    parent_speedups = _corrected(parent_speedups, in_table)
    loss_differences = _corrected({name: losses[name].difference for name in names}, in_table)

    scripts = {}
    for above, name in zip([None, *names], names, strict=False):
        script = runs[name]
        parent = parents[name]
        figures = ScriptFigures(
            name=name,
            label=labels.get(name, name),
            parent=parent,
            branches_from="" if parent == above else labels.get(parent, parent),
            base=chosen.base,
            techniques=chosen.techniques(name),
            in_table=name in in_table,
            unit=script.rows.unit.iloc[0],
            status=script.status,
            rounds=len(script.timed_rounds),
            notes=notes[name],
            quality=script.quality,
            recorded=script.recorded,
            speedup=speedups[name],
            parent_speedup=parent_speedups[name],
            break_even_steps=_break_even_steps(name, parent, runs, levels, parent_speedups[name]),
            loss=losses[name].loss,
            loss_difference=loss_differences[name],
            parity=losses[name].parity,
        )
        scripts[name] = figures if script.timed.empty else _with_times(figures, script, levels)

    base = scripts.get(chosen.base)
    for name, script in scripts.items():
        problem = problem_of(script, base, chosen, runs[name].failure)
        scripts[name] = replace(script, problem=problem)
    return Summary(chosen, levels, scripts)


def measured_steps(args: Namespace) -> dict[str, ScriptFigures]:
    """Return the figures of techniques with timings that a run with these settings would repeat.

    That is on the same device, with the same base, model and shape, and the newest code.

    args: Settings.
    """
    if not rows_file.has_rows(args.results_file):
        return {}
    rows = rows_file.read(args.results_file)
    shape = rows[["device", "base", "model", "seq_len", "requested_batch_size"]]
    requested = [args.hardware.name, args.base, args.model, args.seq_len, args.batch_size]
    rows = rows[(shape == requested).all(axis=1)]
    if rows.empty:
        return {}
    return summarize(study.choose(rows)).scripts


def _labels(chosen, names):
    """Return short names for a table or chart by name: `+technique` on a user's script."""
    own_names = chosen.names("own")
    labels = {}
    for name in names:
        change = chosen.change(name)
        labels[name] = name
        if change and name in own_names and chosen.parent(name) in names:
            _, technique = change[0]
            labels[name] = f"+{technique}"

    shown = list(labels.values())
    return {name: label if shown.count(label) == 1 else name for name, label in labels.items()}


def _corrected(estimates: dict[str, Estimate], in_table: set[str]) -> dict[str, Estimate]:
    """Return Estimates by name, with verdicts corrected by Holm.

    Over the table for its scripts, and over all for those that only an ablation has.
    """
    of_table = {name: estimate for name, estimate in estimates.items() if name in in_table}
    corrected = {}
    for column in (estimates, of_table):
        corrected |= dict(zip(column, intervals.holm(column.values()), strict=True))
    return corrected


def _technique(chosen, name):
    """Return the Technique of a script of the repository, otherwise None."""
    return chosen.ladder.scripts.get(name) if chosen.is_ours else None


def _losses(chosen, name, runs):
    """Return the Losses of a script beside the base, or beside the other side of a pair."""
    is_side = chosen.identities[name].suite == "pair"
    base = chosen.parent(name) if is_side else chosen.base
    technique = _technique(chosen, name)
    return losses_of(runs[name], runs.get(base), chosen.is_ours, technique)


def _notes(chosen, levels, runs, speedups, parent_speedups):
    """Return the notes of each script: of its runs, on its ratios, and on patterns in its steps."""
    # The base has no interval over a parent.
    widths = pd.Series({name: ratio.half_width for name, ratio in parent_speedups.items()})
    widths = widths.fillna(widths.min())

    notes = {}
    for name, parent_speedup in parent_speedups.items():
        texts = runs[name].notes
        technique = _technique(chosen, name)
        if not technique or not technique.is_emulated:
            texts += _notes_on_ratio(levels, chosen.base, name, speedups[name])
            texts += _notes_on_ratio(levels, chosen.parent(name), name, parent_speedup)
        elif parent_speedup:
            texts = [f"emulated: {1 / parent_speedup.value:,.0f} times slower here"]
        texts = list(dict.fromkeys(texts))
        if len(runs[name].timed):
            texts += run_patterns.remarks(runs[name].timed, widths[name])
        notes[name] = tuple(texts)
    return notes


def _notes_on_ratio(levels: Levels, reference: str, name: str, ratio: Ratio) -> list[str]:
    """Return notes on the ratio of a script to another: that rounds are missing, or too few."""
    if not ratio:
        return []

    # The times of other rounds do not divide to the ratio.
    notes = []
    rounds = levels.logs[name].dropna().index
    rounds_of_reference = levels.logs[reference].dropna().index
    if not rounds.equals(rounds_of_reference):
        common = plural(len(rounds.intersection(rounds_of_reference)), "common round")
        counts = f"it has {len(rounds_of_reference)}, this {len(rounds)}"
        notes.append(f"ratio to {reference} from {common}: {counts}")
    if ratio.is_uncertain:
        notes.append(ratio.remedy)
    return notes


def _with_times(figures, script, levels):
    """Return figures with times, rates and peak memory. script: its ScriptRuns."""
    last = script.rows.iloc[-1]
    step_ms = levels.step_ms(figures.name)
    steps = intervals.scaled(script.timed)
    by_run = steps.groupby("run_id", observed=True)
    logs = np.log(by_run.step_ms.quantile([0.2, 0.5, 0.8])).groupby(level=1).mean()
    p20_ms, _, p80_ms = step_ms * np.exp(logs - logs[0.5])
    mean_ms = steps.step_ms.mean()
    if levels.are_fitted:
        mean_ms *= step_ms / np.exp(logs[0.5])

    of_runs = by_run[["first_step_s", "peak_memory_mib"]].first().median()
    return replace(
        figures,
        step_ms=step_ms,
        p20_ms=p20_ms,
        p80_ms=p80_ms,
        tokens_per_second=last.requested_batch_size * last.seq_len / mean_ms * 1e3,
        first_step_s=of_runs.first_step_s,
        own_batch=script.own_batch,
        peak_memory_mib=of_runs.peak_memory_mib,
    )


def _break_even_steps(name, parent, runs, levels, ratio):
    """Return the steps after which a compiled script has saved the extra cost of its warm-up.

    inf for never. NaN without compilation, if there is no detectable difference to the parent, or
    if that is compiled too.
    """
    is_compiled = runs[name].recorded.compiled
    if not is_compiled or ratio.verdict in ("", Ratio.no_difference):
        return np.nan
    if runs[parent].recorded.compiled:
        return np.nan
    saved_ms = levels.step_ms(parent) - levels.step_ms(name)
    more_ms = runs[name].warm_up_ms - runs[parent].warm_up_ms
    return np.ceil(max(0, more_ms) / saved_ms) if saved_ms > 0 else np.inf
