"""Rows of results.csv -> one line per technique: times, ratios, intervals, verdicts. Ratios are
paired within rounds, losses too; times are means of what ratios are of, so they divide to them."""

from dataclasses import replace

import numpy as np
import pandas as pd

from Utils.analysis import intervals
from Utils.analysis.intervals import LossDifference, Ratio
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import plural
from Utils.results import rows_file, selection
from Utils.scripts import ladder, own_names

CLEAN_ROUNDS = 2  # the fewest for a verdict
PARTS = ("memory", "compile", "quality")  # of a record
MEMORY_KINDS = ("weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib")
# Columns of `summarize`. base: the script that speedup is over. unit: of batches, meant where names
# say tokens. reason: why there is no timing, or "". notes: a list of texts.
COLUMNS = ["label", "parent", "base", "unit", "status", "reason", "notes"]
# rounds: with timings. grade: tainted if any round is; quality: the same with its reason. step_ms:
# mean of the rounds, p20 and p80 of all timed steps, for the requested batch. own_batch: the
# batch_size of a technique that chose its batch.
COLUMNS += ["rounds", "grade", "quality", "step_ms", "p20_ms", "p80_ms", "tokens_per_second"]
COLUMNS += ["first_step_s", "own_batch", "compiled"]
# break_even_steps: over the parent, inf for never.
COLUMNS += ["speedup", "parent_speedup", "break_even_steps"]
# loss: nats a token, on held-out text, else the mean of the last timed steps. parity: exact,
# numerics changed, model changed, other batches, another optimizer.
COLUMNS += ["loss", "loss_difference", "parity"]
FIGURES = [*MEMORY_KINDS, "reserved_mib", "mean_power_w"]  # medians of records
COLUMNS += ["peak_memory_mib", *FIGURES]
# Of matrix products. ceiling_share and mfu are shares of 1. floor: the headroom to the model's.
COLUMNS += ["precision", "tflops", "ceiling_share", "mfu", "floor_ms", "floor_speedup"]
COLUMNS += ["hours_per_billion", "kwh_per_billion"]  # of so many tokens


@selection.as_run
def summarize(rows, records=None):
    """Return a DataFrame of COLUMNS, indexed by technique in ladder order. Unknown values are NaN,
    unknown Ratios and LossDifferences false; Holm corrects the verdicts of a column.
    rows: selected rows. records: of those runs by run_id; without them their columns are empty."""
    records = records or {}
    base = selection.baseline(rows)
    timed = selection.timed(rows)
    step_ms = intervals.step_ms(timed)
    runs_by_name = dict(list(rows.groupby("technique")))
    timed_by_name = dict(list(timed.groupby("technique")))
    records_by_name = {
        name: [records[run_id] for run_id in runs.run_id.unique() if run_id in records]
        for name, runs in timed_by_name.items()
    }
    scripts = ladder.techniques() if base == ladder.BASELINE else {}
    position = {name: i for i, name in enumerate(scripts)}
    names = sorted(rows.technique.unique(), key=lambda name: position.get(name, len(position)))
    names = own_names.ordered(names)
    lines = {}
    for name, label in zip(names, own_names.labels(names), strict=True):
        runs = runs_by_name[name]
        parent = scripts[name].parent if name in scripts else own_names.parent(name, step_ms)
        line = {"label": label, "base": base, "unit": runs.unit.iloc[0], "parent": parent}
        line |= {"speedup": Ratio(), "parent_speedup": Ratio(), "loss_difference": LossDifference()}
        line |= _outcome(runs, records)
        lines[name] = line
        if name not in step_ms:
            continue
        last = runs.iloc[-1]
        line["step_ms"] = intervals.typical(step_ms[name])
        line["tokens_per_second"] = last.requested_batch_size * last.seq_len / line["step_ms"] * 1e3
        steps = intervals.scaled(timed_by_name[name]).step_ms
        line["p20_ms"], line["p80_ms"] = np.percentile(steps, [20, 80])
        if (runs.batch_size != runs.requested_batch_size).any():
            line["own_batch"] = last.batch_size
        by_run = runs[runs.status == "ok"].groupby("run_id")
        line |= by_run[["first_step_s", "peak_memory_mib"]].first().median().to_dict()
        for column, reference in (("speedup", base), ("parent_speedup", parent)):
            if reference not in step_ms:
                continue
            line[column] = intervals.speedup(step_ms[reference], step_ms[name])
            own, its = step_ms[name].index, step_ms[reference].index
            if not own.equals(its):  # then the times do not divide to the ratio
                common = plural(len(own.intersection(its)), "common round")
                text = f"ratio to {reference} from {common}: it has {len(its)}, this {len(own)}"
                line["notes"].append(text)
        both = [runs, runs_by_name.get(parent, runs)]
        clean = [{*rows_of["round"][rows_of.grade == "clean"]} for rows_of in both]
        if len(clean[0] & clean[1]) < CLEAN_ROUNDS:
            line["parent_speedup"] = replace(line["parent_speedup"], p=np.nan)
        scale = last.requested_batch_size / last.batch_size  # to a step of the requested batch
        line |= from_records(line, records_by_name[name], last.model, scale)
        line |= _losses(name, base, runs_by_name, timed_by_name, records_by_name)
    summary = pd.DataFrame(list(lines.values()), pd.Index(lines, name="technique"), COLUMNS)
    for column in ("parent_speedup", "loss_difference"):
        summary[column] = pd.Series(intervals.holm(summary[column]), summary.index, dtype=object)
    compiled = summary[summary.compiled.notna()]
    compiled = compiled[~compiled.parent.isin(compiled.index)]
    return summary.assign(break_even_steps=_break_even(rows, compiled, step_ms))


def measured_steps(args):
    """Return the lines of techniques with timings on the device and at the base, model and shape of
    args, by name: of the newest code, without tainted runs."""
    if not rows_file.has_rows(args.results_file):
        return {}
    rows = rows_file.read(args.results_file)
    shape = rows[["device", "base", "model", "seq_len", "requested_batch_size"]]
    of_args = [args.hardware.name, args.base, args.model, args.seq_len, args.batch_size]
    rows = rows[(shape == of_args).all(axis=1) & (rows.grade == "clean")]
    if rows.empty:
        return {}
    return dict(summarize(selection.select(rows, with_variants=True)[0]).iterrows())


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


def _losses(name, base, runs_by_name, timed_by_name, records):
    """Return the columns from losses. Those of other batches or another optimizer have no pair."""
    runs, timed = runs_by_name[name], timed_by_name[name]
    losses = intervals.losses(timed)
    line = {"loss": losses.mean()}
    is_own = own_names.split(name)
    if is_own and _step_losses(runs).isna().all():
        return line  # it calls no backward: nothing to judge
    if not np.isfinite(timed.loss).all():
        line["loss_difference"] = LossDifference(np.inf)
    same_batch = runs.batch_size.eq(runs.requested_batch_size).all()
    if base not in records or name == base or not same_batch:
        return line
    if any(record.get("dataset_facts", {}).get("streamed") for record in records[name]):
        return line | {"parity": "other batches"}
    if is_own and runs.seed.nunique() == 1:  # its own: rounds repeat each other
        losses = losses.iloc[:1]
    difference = intervals.loss_difference(intervals.losses(timed_by_name[base]), losses)
    technique = ladder.techniques().get(name)
    stated = technique.stated_parity if technique else ""
    if stated == "another optimizer":
        return line | {"parity": stated}
    rounding = "float8" if technique and "float8" in technique.needs else "bfloat16"
    updated = min((r.get("updated_parameters", np.inf) for r in records[name]), default=np.inf)
    by_base = max((r.get("updated_parameters", 0) for r in records[base]), default=0)
    by_step = _step_losses(runs_by_name[base]), _step_losses(runs)
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
    parents, a Series: inf for never; without those that have no detectable difference."""
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
