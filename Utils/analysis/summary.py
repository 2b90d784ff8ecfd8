"""A study -> its figures, computed once: a line per technique with times, ratios, verdicts.

Ratios are paired within rounds, losses too; times are means of what ratios are of, so they divide
to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from Utils.analysis import intervals
from Utils.analysis.intervals import LossDifference, Ratio
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import plural
from Utils.results import rows_file, selection, study
from Utils.results.study import Study

CLEAN_ROUNDS = 2  # the fewest for a verdict
PARTS = ("memory", "compile", "quality")  # of a record
MEMORY_KINDS = ("weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib")
FIGURES = [*MEMORY_KINDS, "reserved_mib", "mean_power_w"]  # medians of records
COLUMNS = [
    "label",
    "parent",  # NaN for a base
    "base",  # the script that speedup is over
    "unit",  # of batches, meant where names say tokens
    "status",
    "reason",  # why there is no timing, or ""
    "notes",  # a list of texts
    "rounds",  # with timings
    "grade",  # tainted if any round is
    "quality",  # the grade with its reason
    "step_ms",  # mean of the rounds, for the requested batch
    "p20_ms",  # of all timed steps
    "p80_ms",
    "tokens_per_second",
    "first_step_s",
    "own_batch",  # the batch_size of a technique that chose its batch
    "compiled",
    "speedup",
    "parent_speedup",
    "break_even_steps",  # over the parent, inf for never
    "loss",  # nats a token, on held-out text, else the mean of the last timed steps
    "loss_difference",
    "parity",  # exact, numerics changed, model changed, other batches, another optimizer
    "peak_memory_mib",
    *FIGURES,
    "precision",  # of matrix products
    "tflops",
    "ceiling_share",  # of 1, like mfu
    "mfu",
    "floor_ms",
    "floor_speedup",  # the headroom to the model's floor
    "hours_per_billion",  # tokens
    "kwh_per_billion",
]


@dataclass(frozen=True)
class Summary:
    """Figures of a Study.

    lines: a DataFrame of COLUMNS, a line per technique of study.rows, in ladder order. Unknown
    values are NaN, unknown Ratios and LossDifferences false; Holm corrects the verdicts of a
    column. ablation: the same of the scripts that only study.all_rows has.
    """

    study: Study
    lines: pd.DataFrame
    ablation: pd.DataFrame

    @property
    def all_lines(self) -> pd.DataFrame:
        return pd.concat([self.lines, self.ablation]) if len(self.ablation) else self.lines


@dataclass(frozen=True)
class _Groups:
    """Rows by technique. step_ms: by technique and round."""

    runs: dict
    timed: dict
    records: dict
    step_ms: pd.Series


def _grouped(rows, records):
    timed = selection.timed(rows)
    timed_by_name = dict(list(timed.groupby("technique")))
    records_by_name = {
        name: [records[run_id] for run_id in runs.run_id.unique() if run_id in records]
        for name, runs in timed_by_name.items()
    }
    runs_by_name = dict(list(rows.groupby("technique")))
    return _Groups(runs_by_name, timed_by_name, records_by_name, intervals.step_ms(timed))


def summarize(chosen: Study) -> Summary:
    """Return the Summary of a study. Columns from records are empty without records."""
    lines = _lines(chosen, chosen.rows, chosen.order)
    if chosen.all_rows is chosen.rows:
        return Summary(chosen, _corrected(lines), lines.iloc[:0])

    variants = [name for name in chosen.order if name not in lines.index]
    ablation = _lines(chosen, chosen.all_rows, variants)
    both = _corrected(pd.concat([lines, ablation]))
    return Summary(chosen, _corrected(lines), both.loc[ablation.index])


def _lines(chosen, rows, order):
    """Return the lines of the techniques of `order` that rows have, verdicts not corrected."""
    groups = _grouped(rows, chosen.records)
    names = [name for name in order if name in groups.runs]
    labels = _labels(chosen, names)
    lines = [_line(chosen, name, labels[name], groups) for name in names]
    lines = pd.DataFrame(lines, pd.Index(names, name="technique"), COLUMNS)
    compiled = lines[lines.compiled.notna()]
    compiled = compiled[~compiled.parent.isin(compiled.index)]
    # Holm first: steps are saved only where there is a difference.
    compiled = compiled.assign(parent_speedup=_corrected(lines).parent_speedup[compiled.index])
    return lines.assign(break_even_steps=_break_even(rows, compiled, groups.step_ms))


def _corrected(lines):
    """Return lines with the verdicts of each column corrected by Holm."""
    corrected = {
        column: pd.Series(intervals.holm(lines[column]), lines.index, dtype=object)
        for column in ("parent_speedup", "loss_difference")
    }
    return lines.assign(**corrected)


def _labels(chosen, names):
    """Return short names for a table or chart by name: `+technique` on a user's script."""
    own = chosen.names("own")
    labels = {}
    for name in names:
        parent = chosen.parent(name)
        is_short = name in own and parent != chosen.base and parent in names
        added = [technique for _, technique in chosen.change(name)[:1] if is_short]
        labels[name] = f"+{added[0]}" if added else name
    shown = list(labels.values())
    return {name: label if shown.count(label) == 1 else name for name, label in labels.items()}


def _line(chosen, name, label, groups):
    """Return the line of a technique, a dict."""
    runs = groups.runs[name]
    step_ms = groups.step_ms
    parent = chosen.parent(name) or None
    line = {
        "label": label,
        "parent": parent,
        "base": chosen.base,
        "unit": runs.unit.iloc[0],
        "speedup": Ratio(),
        "parent_speedup": Ratio(),
        "loss_difference": LossDifference(),
        **_outcome(runs, chosen.records),
    }
    if name not in step_ms:
        return line

    # Times and rates.
    last = runs.iloc[-1]
    line["step_ms"] = intervals.typical(step_ms[name])
    line["tokens_per_second"] = last.requested_batch_size * last.seq_len / line["step_ms"] * 1e3
    steps = intervals.scaled(groups.timed[name]).step_ms
    line["p20_ms"], line["p80_ms"] = np.percentile(steps, [20, 80])
    if (runs.batch_size != runs.requested_batch_size).any():
        line["own_batch"] = last.batch_size
    by_run = runs[runs.status == "ok"].groupby("run_id")
    line |= by_run[["first_step_s", "peak_memory_mib"]].first().median().to_dict()

    # Ratios, from the rounds that both have.
    for column, reference in (("speedup", chosen.base), ("parent_speedup", parent)):
        if reference not in step_ms:
            continue
        line[column] = intervals.speedup(step_ms[reference], step_ms[name])
        rounds = step_ms[name].index
        rounds_of_reference = step_ms[reference].index
        if not rounds.equals(rounds_of_reference):  # then the times do not divide to the ratio
            common = plural(len(rounds.intersection(rounds_of_reference)), "common round")
            counts = f"it has {len(rounds_of_reference)}, this {len(rounds)}"
            line["notes"].append(f"ratio to {reference} from {common}: {counts}")
    clean = _clean_rounds(runs) & _clean_rounds(groups.runs.get(parent, runs))
    if len(clean) < CLEAN_ROUNDS:
        line["parent_speedup"] = replace(line["parent_speedup"], p=np.nan)

    scale = last.requested_batch_size / last.batch_size  # to a step of the requested batch
    line |= from_records(line, groups.records[name], last.model, scale)
    line |= _losses(chosen, name, groups)
    return line


def _clean_rounds(runs):
    return {*runs["round"][runs.grade == "clean"]}


def measured_steps(args):
    """Return the lines of techniques with timings on the device and at the base, model and shape of
    args, by name: of the newest code, without tainted runs.
    """
    if not rows_file.has_rows(args.results_file):
        return {}
    rows = rows_file.read(args.results_file)
    shape = rows[["device", "base", "model", "seq_len", "requested_batch_size"]]
    of_args = [args.hardware.name, args.base, args.model, args.seq_len, args.batch_size]
    rows = rows[(shape == of_args).all(axis=1) & (rows.grade == "clean")]
    if rows.empty:
        return {}
    return dict(summarize(study.newest(rows, with_ablation=True)).lines.iterrows())


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
    bad = runs[runs.status != "ok"]
    notes += [f"round {index}: {run.status}: {run.note}" for index, run in bad.iterrows()]
    grade = quality = "clean"
    tainted = timed[timed.grade == "tainted"]
    if len(tainted):
        grade = "tainted"
        quality = f"tainted in {len(tainted)} of {len(timed)} rounds"
        facts = records.get(tainted.run_id.iloc[0], {}).get("quality") or {}
        if reasons := facts.get("reasons"):  # of the first
            quality += f": {' and '.join(reasons)}"
    outcome = {"status": "ok", "reason": "", "rounds": len(timed), "notes": notes}
    return outcome | {"grade": grade, "quality": quality}


def _losses(chosen, name, groups):
    """Return the columns from losses. Those of other batches or another optimizer have no pair."""
    base = chosen.base
    runs = groups.runs[name]
    timed = groups.timed[name]
    records = groups.records
    losses = intervals.losses(timed)
    line = {"loss": losses.mean()}
    if not chosen.is_ours and _step_losses(runs).isna().all():
        return line  # it calls no backward: nothing to judge
    if not np.isfinite(timed.loss).all():
        line["loss_difference"] = LossDifference(np.inf)
    same_batch = runs.batch_size.eq(runs.requested_batch_size).all()
    if base not in records or name == base or not same_batch:
        return line
    if any(record.get("dataset_facts", {}).get("streamed") for record in records[name]):
        return line | {"parity": "other batches"}

    if not chosen.is_ours and runs.seed.nunique() == 1:  # its own: rounds repeat each other
        losses = losses.iloc[:1]
    difference = intervals.loss_difference(intervals.losses(groups.timed[base]), losses)
    script = chosen.ladder.scripts.get(name) if chosen.is_ours else None
    stated = script.stated_parity if script else ""
    if stated == "another optimizer":
        return line | {"parity": stated}

    rounding = "float8" if script and "float8" in script.needs else "bfloat16"
    updated = min((r.get("updated_parameters", np.inf) for r in records[name]), default=np.inf)
    by_base = max((r.get("updated_parameters", 0) for r in records[base]), default=0)
    by_step = _step_losses(groups.runs[base]), _step_losses(runs)
    line["parity"] = intervals.parity(*by_step, runs.model.iloc[0], rounding, updated < by_base)
    if stated == "approximate" and line["parity"] == "model changed":
        line["parity"] = "numerics changed"
    return {"loss_difference": difference} | line


def _step_losses(runs):
    """Return the losses of a script by round and step."""
    losses = runs[runs.status == "ok"].set_index(["round", "step"]).loss
    return losses[~losses.index.duplicated()]  # our runs have no step twice


def from_records(line, records, model, scale=1.0):
    """Return the columns from records of runs. scale: of a step to one of the requested batch."""
    parts = [[record.get(part) or {} for part in PARTS] for record in records]
    facts = pd.DataFrame([memory | compiled | quality for memory, compiled, quality in parts])
    facts = facts.reindex(columns=[*FIGURES, "graphs", "recompilations", "cache"])
    medians = facts.drop(columns="cache").astype(float).median()
    columns = medians[FIGURES].to_dict()
    if not np.isnan(medians.graphs):
        columns["compiled"] = plural(round(medians.graphs), "graph")
        caches = facts["cache"].dropna().unique()
        columns["compiled"] += f", {' or '.join(sorted(caches))} cache" if len(caches) else ""
        if medians.recompilations:
            columns["compiled"] += f"; {medians.recompilations:.0f} recompiled"

    rate = line["tokens_per_second"]
    if limits := (records[-1].get("limits") if records else None):
        columns["precision"] = precision = limits["precision"]
        columns["tflops"] = (limits["flops_per_token"] or np.nan) * rate / 1e12
        ceilings = (limits["ceilings"] or {}).get("matmul_tflops", {})
        columns["ceiling_share"] = columns["tflops"] / ceilings.get(precision, np.nan)
        columns["mfu"] = columns["tflops"] / (limits["datasheet_tflops"] or np.nan)
        # The floor is of AdamW in float32: of weights and state of that size, where known.
        held = columns["weights_mib"] + columns["optimizer_state_mib"]
        modelled = 12 * CONFIGS[model].parameters() / 2**20 if model in CONFIGS else np.nan
        if not abs(held / modelled - 1) > 0.01:
            columns["floor_ms"] = scale * (limits.get("floor_ms") or np.nan)
            columns["floor_speedup"] = line["step_ms"] / columns["floor_ms"]

    columns["hours_per_billion"] = 1e9 / rate / 3600
    columns["kwh_per_billion"] = columns["mean_power_w"] / 1e3 * columns["hours_per_billion"]
    return columns


def _break_even(rows, compiled, step_ms):
    """Return the steps in which compiled scripts save the extra cost of their warm-up against their
    parents, a Series: inf for never; without those that have no detectable difference.
    """
    steps = selection.numbered(rows[rows.technique.isin({*compiled.index, *compiled.parent})])
    timed_ms = steps.step_ms.where(steps.phase == "timed")
    usual_ms = timed_ms.groupby(steps.run_id).transform("median")
    first = steps.assign(extra_ms=steps.step_ms - usual_ms)[steps.step < 0]
    by_run = first.groupby(["round", "technique", "run_id"]).extra_ms.sum()
    extra_ms = by_run.groupby(["round", "technique"]).mean().unstack()
    extra_ms = extra_ms.reindex(columns=rows.technique.unique())
    break_even = {}
    for name, line in compiled.iterrows():
        if line.parent_speedup.verdict not in ("", Ratio.neither):
            saved_ms = (step_ms[line.parent] - step_ms[name]).mean()
            more_ms = np.fmax(0, (extra_ms[name] - extra_ms[line.parent]).mean())
            break_even[name] = np.ceil(more_ms / saved_ms) if saved_ms > 0 else np.inf
    return pd.Series(break_even, dtype=float)
