"""A study -> its figures, computed once: a line per technique with times, ratios, verdicts.

Ratios are paired within rounds, losses too. A time is a mean over rounds of medians, and the
quotient of two times is their ratio. A rate is by the mean step, as cost is.
"""

from argparse import Namespace
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from Utils.analysis import intervals, run_patterns
from Utils.analysis.intervals import LossDifference, Ratio
from Utils.analysis.levels import Levels, levels_of
from Utils.analysis.losses import loss_difference, loss_of_round, parity
from Utils.analysis.record_figures import FIGURES, from_records
from Utils.base.text import plain, plural
from Utils.results import rows_file, selection, study
from Utils.results.study import Study

OWN_LOSS = 0.01  # share of a loss by which a user's script may differ and be the same
COLUMNS = [
    "label",
    "parent",  # NaN for a base
    "branches_from",  # the parent's label, if it is not the line above
    "base",  # the script that speedup is over
    "unit",  # of batches; names say tokens for any unit
    "status",
    "reason",  # why there is no timing, or ""
    "notes",  # a list of texts
    "rounds",  # with timings
    "grade",  # tainted if any round is
    "quality",  # the grade with its reason
    "step_ms",  # mean of the rounds' medians, for the requested batch
    "p20_ms",  # percentiles of the runs' steps, as step_ms is their median
    "p80_ms",
    "tokens_per_second",  # by the mean step
    "first_step_s",
    "own_batch",  # the batch_size of a technique that chose its batch
    "compiled",
    "speedup",
    "parent_speedup",
    "break_even_steps",  # over the parent, inf for never
    "loss",  # nats a token, on held-out text or as the mean of the last timed steps
    "loss_difference",
    # exact, numerics changed, model changed, other batches, other steps, another optimizer
    "parity",
    "peak_memory_mib",
    *FIGURES,
    "precision",  # type of matrix products
    "tflops",
    "ceiling_share",  # between 0 and 1, like mfu
    "mfu",
    "floor_ms",
    "floor_speedup",  # the headroom to the model's floor
    "hours_per_billion",  # tokens
    "kwh_per_billion",
]


@dataclass(frozen=True)
class Summary:
    """Figures of a Study.

    figures: a line of COLUMNS per technique of study.rows, in ladder order. Unknown values are NaN,
    unknown Ratios and LossDifferences false; Holm corrects the verdicts of a column.
    ablation: the same for the scripts that only study.all_rows has.
    levels: from which all ratios of the study are.
    """

    study: Study
    figures: pd.DataFrame
    ablation: pd.DataFrame
    levels: Levels

    @property
    def all_figures(self) -> pd.DataFrame:
        return pd.concat([self.figures, self.ablation]) if len(self.ablation) else self.figures


@dataclass(frozen=True)
class _Script:
    """Runs of a technique, their timed steps, and the records of those with timings."""

    runs: pd.DataFrame
    timed: pd.DataFrame
    records: list[dict]


def summarize(chosen: Study) -> Summary:
    """Return the Summary of a study. Columns from records are empty without records."""
    rows = chosen.all_rows
    parents = {name: chosen.parent(name) for name in chosen.order}
    levels = levels_of(selection.timed(rows), parents, chosen.base)

    records = chosen.records
    scripts = {}
    for name, runs in rows.groupby("technique"):
        timed = selection.timed(runs)
        recorded = [records[run_id] for run_id in timed.run_id.unique() if run_id in records]
        scripts[name] = _Script(runs, timed, recorded)

    # The scripts of an ablation follow those of the table.
    in_table = {*chosen.rows.technique.unique()}
    names = sorted(chosen.order, key=lambda name: name not in in_table)
    shown_names = names[: len(in_table)]
    labels = _labels(chosen, shown_names)
    figures = [_figures_of(chosen, name, labels.get(name, name), scripts, levels) for name in names]
    figures = pd.DataFrame(figures, pd.Index(names, name="technique"), COLUMNS)
    above = figures.index.to_series().shift()
    figures["branches_from"] = figures.parent.replace(labels).where(figures.parent != above)

    # What the steps show beside their medians; the base has no interval over a parent.
    ends = intervals.numbers(figures.parent_speedup)
    widths = np.sqrt(ends.high / ends.low) - 1  # to each side
    for name, width in widths.fillna(widths.min()).items():
        if len(scripts[name].timed):
            figures.notes[name].extend(run_patterns.remarks(scripts[name].timed, width))

    # Holm corrects over the table, and over all for the ablation.
    shown = _corrected(figures.loc[shown_names], scripts, levels)
    ablation = _corrected(figures, scripts, levels).drop(shown_names)
    return Summary(chosen, shown, ablation, levels)


def measured_steps(args: Namespace) -> dict[str, pd.Series]:
    """Return the figures of techniques with timings that a run with these settings would repeat.

    That is on the same device, with the same base, model and shape, and the newest code, without
    tainted runs. args: Settings.
    """
    if not rows_file.has_rows(args.results_file):
        return {}
    rows = rows_file.read(args.results_file)
    shape = rows[["device", "base", "model", "seq_len", "requested_batch_size"]]
    requested = [args.hardware.name, args.base, args.model, args.seq_len, args.batch_size]
    rows = rows[(shape == requested).all(axis=1) & (rows.grade == "clean")]
    if rows.empty:
        return {}
    return dict(summarize(study.choose(rows)).all_figures.iterrows())


def _corrected(figures, scripts, levels):
    """Return figures with the verdicts of each column corrected by Holm, and break-even steps."""
    figures = figures.copy()
    for column in ("parent_speedup", "loss_difference"):
        figures[column] = intervals.holm(figures[column])
    return figures.assign(break_even_steps=_break_even(figures, scripts, levels))


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


def _figures_of(chosen, name, label, scripts, levels):
    """Return the line of a technique, a dict of those of COLUMNS that are known."""
    script = scripts[name]
    runs = script.runs
    line = {
        "label": label,
        "parent": chosen.parent(name) or None,
        "base": chosen.base,
        "unit": runs.unit.iloc[0],
        "speedup": Ratio(),
        "parent_speedup": Ratio(),
        "loss_difference": LossDifference(),
        **_outcome(runs, chosen.records),
    }
    if script.timed.empty:
        return line

    last = runs.iloc[-1]
    scale = last.requested_batch_size / last.batch_size  # to a step of the requested batch
    line |= _times(runs, script.timed, levels, name)
    line |= _ratios(chosen, name, line, levels)
    line |= from_records(line, script.records, last.model, scale)
    return line | _losses(chosen, name, scripts)


def _outcome(runs, records):
    """Return status ("ok" if any round has timings), reason, notes, grade and quality."""
    runs = runs.groupby("round")[["status", "note", "grade", "run_id"]].first()
    timed = runs[runs.status == "ok"]
    if timed.empty:
        last = runs.iloc[-1]
        notes = [last.note] if last.note else []
        reason = ": ".join([last.status.replace("_", " "), *notes])
        return {"status": last.status, "notes": notes, "reason": reason}

    notes = [text for text in timed.note.str.split("; ").explode().unique() if text]
    for number, run in runs[runs.status != "ok"].iterrows():
        notes.append(f"round {number}: {run.status}: {run.note}")

    quality = "undisturbed"
    tainted = timed[timed.grade == "tainted"]
    if len(tainted):
        quality = f"disturbed in {len(tainted)} of {len(timed)} rounds"
        recorded = records.get(tainted.run_id.iloc[0], {}).get("quality") or {}
        reasons = recorded.get("reasons")  # of the first tainted run
        if reasons:
            quality += plain(f": {' and '.join(reasons)}")
    return {
        "status": "ok",
        "reason": "",
        "rounds": len(timed),
        "notes": notes,
        "grade": "tainted" if len(tainted) else "clean",
        "quality": quality,
    }


def _times(runs, timed, levels, name):
    """Return the columns of times, rates and peak memory."""
    last = runs.iloc[-1]
    step_ms = levels.step_ms(name)
    steps = intervals.scaled(timed)
    by_run = steps.groupby("run_id", observed=True)
    logs = np.log(by_run.step_ms.quantile([0.2, 0.5, 0.8])).groupby(level=1).mean()
    p20_ms, _, p80_ms = step_ms * np.exp(logs - logs[0.5])
    mean_ms = steps.step_ms.mean()
    if levels.are_fitted:
        mean_ms *= step_ms / np.exp(logs[0.5])

    columns = {
        "step_ms": step_ms,
        "tokens_per_second": last.requested_batch_size * last.seq_len / mean_ms * 1e3,
        "p20_ms": p20_ms,
        "p80_ms": p80_ms,
        **by_run[["first_step_s", "peak_memory_mib"]].first().median(),
    }
    if (runs.batch_size != runs.requested_batch_size).any():
        columns["own_batch"] = last.batch_size
    return columns


def _ratios(chosen, name, line, levels):
    """Return the columns of speedups, from the rounds that both have, and notes with remarks."""
    columns = {}
    notes = line["notes"]
    rounds = levels.logs[name].dropna().index
    for column, reference in (("speedup", line["base"]), ("parent_speedup", line["parent"])):
        ratio = levels.ratio(reference, name)
        if chosen.disturbed:
            ratio = replace(ratio, p=np.nan)
        if not ratio:
            continue
        columns[column] = ratio

        technique = chosen.ladder.scripts.get(name)
        if technique and technique.is_emulated and chosen.is_ours:
            if column == "parent_speedup":
                notes[:] = [f"emulated: {1 / ratio.value:,.0f} times slower here"]
            continue

        # The times of other rounds do not divide to the ratio.
        rounds_of_reference = levels.logs[reference].dropna().index
        if not rounds.equals(rounds_of_reference):
            common = plural(len(rounds.intersection(rounds_of_reference)), "common round")
            counts = f"it has {len(rounds_of_reference)}, this {len(rounds)}"
            notes.append(f"ratio to {reference} from {common}: {counts}")
        if ratio.is_uncertain:
            notes.append(ratio.remedy)
    return columns | {"notes": list(dict.fromkeys(notes))}


def _losses(chosen, name, scripts):
    """Return the columns of losses; those of other batches or another optimizer have no pair."""
    script = scripts[name]
    runs = script.runs
    is_side = chosen.identities[name].suite == "pair"
    base = scripts.get(chosen.parent(name) if is_side else chosen.base)
    losses = loss_of_round(script.timed)
    columns = {"loss": losses.mean()}
    if not chosen.is_ours and _step_losses(runs).isna().all():
        return columns  # a user's script that calls no backward
    if not np.isfinite(script.timed.loss).all():
        columns["loss_difference"] = LossDifference(np.inf)

    # Some losses are not comparable with the baseline's.
    same_batch = runs.batch_size.eq(runs.requested_batch_size).all()
    if base is None or base.timed.empty or base is script or not same_batch:
        return columns
    if any(record.get("dataset_facts", {}).get("streamed") for record in script.records):
        return columns | {"parity": "other batches"}
    losses = losses.drop(_rounds_of_other_steps(script, base), errors="ignore")
    if losses.empty:
        return columns | {"parity": "other steps"}
    technique = chosen.ladder.scripts.get(name) if chosen.is_ours else None
    stated = technique.stated_parity if technique else ""
    if stated == "another optimizer":
        return columns | {"parity": stated}

    losses_of_base = loss_of_round(base.timed)
    margin = intervals.SAME_LOSS
    if not chosen.is_ours:
        if runs.seed.nunique() == 1:  # a fixed seed: rounds repeat each other
            losses = losses.iloc[:1]
        margin = OWN_LOSS * abs(losses_of_base.mean())
        if np.ptp(losses_of_base) > margin:
            margin = np.nan  # the base differs from itself by more
    difference = loss_difference(losses_of_base, losses, margin)
    if chosen.is_ours and difference:
        columns["loss"] = losses_of_base.mean() + difference.value  # rounds may be missing
    rounding = "float8" if technique and "float8" in technique.needs else "bfloat16"
    parity = _parity(script, base, rounding)
    if stated == "approximate" and parity == "model changed":
        parity = "numerics changed"
    return {"loss_difference": difference, "parity": parity} | columns


def _rounds_of_other_steps(script, base):
    """Return the rounds in which a run of one of them was cut, or emulated: a list."""
    steps, steps_of_base = [
        {record.get("round"): (record.get("settings") or {}).get("steps") for record in own.records}
        for own in (script, base)
    ]
    return [r for r in steps.keys() & steps_of_base if steps[r] != steps_of_base[r]]


def _parity(script, base, rounding):
    """Return the parity of a script with its base, both a _Script."""
    updated = min((r.get("updated_parameters", np.inf) for r in script.records), default=np.inf)
    updated_by_base = max((r.get("updated_parameters", 0) for r in base.records), default=0)
    model = script.runs.model.iloc[0]
    step_losses = _step_losses(base.runs), _step_losses(script.runs)
    return parity(*step_losses, model, rounding, updated < updated_by_base)


def _step_losses(runs):
    """Return the losses of a script by round and step."""
    losses = runs[runs.status == "ok"].set_index(["round", "step"]).loss
    return losses[~losses.index.duplicated()]  # a user's script may have a step twice


def _break_even(figures, scripts, levels):
    """Return the steps after which compiled scripts have saved the extra cost of their warm-up.

    A Series: inf for never, without scripts that have no detectable difference to their parents,
    or whose parent is compiled too.
    """
    compiled = figures[figures.compiled.notna()]
    break_even = {}
    for name, line in compiled.iterrows():
        verdict = line.parent_speedup.verdict
        if line.parent in compiled.index or verdict in ("", Ratio.no_difference):
            continue
        saved_ms = levels.step_ms(line.parent) - line.step_ms
        more_ms = _warm_up_ms(scripts[name].runs) - _warm_up_ms(scripts[line.parent].runs)
        break_even[name] = np.ceil(max(0, more_ms) / saved_ms) if saved_ms > 0 else np.inf
    return pd.Series(break_even, dtype=float)


def _warm_up_ms(runs):
    """Return how much slower than a usual step those of the warm-up are, all together.

    The mean over the runs.
    """
    steps = selection.numbered(runs)
    timed_ms = steps.step_ms.where(steps.phase == "timed")
    usual_ms = timed_ms.groupby(steps.run_id, observed=True).transform("median")
    extra_ms = (steps.step_ms - usual_ms)[steps.step < 0]
    return extra_ms.sum() / steps.run_id.nunique()
