"""Rows of results.csv -> one line per technique: medians, ratios, intervals, verdicts.

Ratios are paired: within a round both scripts ran under the same conditions on the same batches,
so the median step times of a round are divided, and the log ratios averaged over the rounds. The
interval is Student's t over the rounds, 95%. One round has no interval and no verdict. Losses are
paired in the same way, as differences.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from Utils.analysis import intervals, round_levels
from Utils.analysis.intervals import LossDifference, Ratio
from Utils.base.gpt2_sizes import CONFIGS
from Utils.results import selection
from Utils.scripts import bases, ladder

MEMORY_KINDS = ("weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib")
COLUMNS = [
    "label",  # a short name
    "base",  # the script that `speedup` is over
    "unit",  # of batches, which is meant where this list says tokens
    *("parent", "status", "note"),
    *("rounds", "grade"),  # with timings; "tainted" if any of these is
    *("tainted_rounds", "reason"),  # the reason of the first
    *("median_ms", "p20_ms", "p80_ms"),  # of all timed steps
    *("tokens_per_second", "first_step_s"),
    "own_batch",  # the batch_size of a technique that chose its batch
    "speedup",  # Ratio over the baseline, for as many tokens
    "parent_speedup",  # the same over the parent
    "loss",  # nats a token, on held-out text; without it the mean of the last timed steps
    "loss_difference",  # LossDifference from the baseline
    "parity",  # "exact", "numerics changed", "model changed", "other batches"
    *("peak_memory_mib", *MEMORY_KINDS, "reserved_mib", "device_mib"),
    *("graphs", "recompilations", "compile_cache"),
    "break_even_steps",  # against the parent, inf for never
    *("precision", "tflops"),  # of matrix products; reached
    *("ceiling_share", "mfu"),  # of 1
    *("floor_ms", "floor_speedup"),  # the headroom to the modelled floor
    *("hours_per_billion", "kwh_per_billion", "joules_per_million"),  # tokens
    "mean_power_w",
]


def summarize(rows, records=None):
    """Return a DataFrame with one line per technique, in ladder order, indexed by technique, with
    COLUMNS. Unknown values are NaN, unknown Ratios and LossDifferences are false.

    rows: selected rows. records: of those runs, from `results.records`; without them their columns
    are empty.
    """
    records = records or {}
    baseline = selection.baseline(rows)
    known = ladder.techniques() if baseline == ladder.BASELINE else {}
    order = bases.ordered([*known, *rows.technique[~rows.technique.isin(known)].unique()])
    timed = selection.timed(rows)
    by_step = rows[rows.status == "ok"].set_index(["technique", "round", "step"]).loss
    data = SimpleNamespace(
        baseline=baseline,
        known=known,
        timed=timed,
        medians=round_levels.step_ms(timed),  # these and the losses by technique and round
        losses=intervals.losses(timed),
        by_step=by_step[~by_step.index.duplicated()],  # a run of the harness has no step twice
        records={
            name: [records[run_id] for run_id in runs.run_id.unique() if run_id in records]
            for name, runs in timed.groupby("technique")
        },
    )
    lines = []
    for name in order:
        own = rows[rows.technique == name]
        if own.empty:
            continue
        parent = known[name].parent if name in known else bases.parent(name)
        line = {"technique": name, "parent": parent, **_outcome(own, records)}
        line |= {"base": baseline, "unit": own.unit.iloc[0]}
        line |= {"speedup": Ratio(), "parent_speedup": Ratio(), "loss_difference": LossDifference()}
        if name in data.medians:
            line |= _times(data, name, own, parent) | _losses(data, name, own)
            line |= from_records(line, data.records[name], own.model.iloc[0])
            if _compiles(data.records[name]) and not _compiles(data.records.get(parent, [])):
                line["break_even_steps"] = intervals.break_even(rows, name, parent, data.medians)
        lines.append(line)
    for line, label in zip(lines, bases.labels(line["technique"] for line in lines), strict=True):
        line["label"] = label
    return pd.DataFrame(lines, columns=["technique", *COLUMNS]).set_index("technique")


def _times(data, name, own, parent):
    """Return the columns from step times, and peak memory."""
    steps = data.timed.step_ms[data.timed.technique == name]
    line = {"rounds": len(data.medians[name])}
    line["p20_ms"], line["median_ms"], line["p80_ms"] = np.percentile(steps, [20, 50, 80])
    tokens = own.batch_size.iloc[-1] * own.seq_len.iloc[0]
    line["tokens_per_second"] = tokens / line["median_ms"] * 1e3
    if (own.batch_size != own.requested_batch_size).any():
        line["own_batch"] = own.batch_size.iloc[-1]
    by_run = own[own.status == "ok"].groupby("run_id")
    for figure in ("first_step_s", "peak_memory_mib"):
        line[figure] = by_run[figure].first().median()
    for column, reference in (("speedup", data.baseline), ("parent_speedup", parent)):
        if reference in data.medians:
            line[column] = intervals.speedup(data.medians[reference], data.medians[name])
    return line


def _losses(data, name, own):
    """Return the columns from losses. Losses on other batches cannot be paired."""
    line, records = {"loss": data.losses[name].mean()}, data.records[name]
    baseline, same = data.baseline, own.batch_size.eq(own.requested_batch_size).all()
    if baseline in data.losses and name != baseline and same:
        if any(record.get("dataset_facts", {}).get("streamed") for record in records):
            line["parity"] = "other batches"
        else:
            difference = intervals.loss_difference(data.losses[baseline], data.losses[name])
            line["loss_difference"] = difference
            fewer = _fewer_updated(records, data.records[baseline])
            pair = data.by_step[baseline], data.by_step[name]
            needs = data.known[name].needs if name in data.known else ()
            rounding = "float8" if "float8" in needs else "bfloat16"
            line["parity"] = intervals.parity(*pair, own.model.iloc[0], rounding, fewer)
    if not np.isfinite(data.timed.loss[data.timed.technique == name]).all():
        line["loss_difference"] = LossDifference(diverged=True)
    return line


def from_records(line, records, model):
    """Return the columns from the records of a technique's runs."""
    columns = {kind: _median(records, "memory", kind) for kind in (*MEMORY_KINDS, "reserved_mib")}
    columns["device_mib"] = _median(records, "quality", "used_memory_mib")
    columns["graphs"] = _median(records, "compile", "graphs")
    columns["recompilations"] = _median(records, "compile", "recompilations")
    caches = [record["compile"]["cache"] for record in records if record.get("compile")]
    columns["compile_cache"] = " or ".join(sorted({cache for cache in caches if cache}))

    rate = line["tokens_per_second"]
    if limits := (records[-1].get("limits") if records else None):
        columns["precision"] = precision = limits["precision"]
        columns["tflops"] = (limits["flops_per_token"] or np.nan) * rate / 1e12
        ceilings = (limits["ceilings"] or {}).get("matmul_tflops", {})
        columns["ceiling_share"] = columns["tflops"] / ceilings.get(precision, np.nan)
        columns["mfu"] = columns["tflops"] / (limits["datasheet_tflops"] or np.nan)
        if _updates_as_modelled(columns, model):
            columns["floor_ms"] = limits.get("floor_ms") or np.nan
            columns["floor_speedup"] = line["median_ms"] / columns["floor_ms"]

    columns["hours_per_billion"] = 1e9 / rate / 3600
    columns["mean_power_w"] = power = _median(records, "quality", "mean_power_w")
    columns["joules_per_million"] = power * 1e6 / rate
    columns["kwh_per_billion"] = power / 1e3 * columns["hours_per_billion"]
    return columns


def _updates_as_modelled(memory, model):
    """Tell whether weights and optimizer state have the size that the modelled floor assumes, that
    of AdamW in float32. True where their size is unknown."""
    held = memory["weights_mib"] + memory["optimizer_state_mib"]
    modelled = 3 * 4 * CONFIGS[model].parameters() / 2**20 if model in CONFIGS else np.nan
    return not abs(held / modelled - 1) > 0.01


def _median(records, part, key):
    """Return the median of a value over the records that have it; NaN if none has."""
    values = [(record.get(part) or {}).get(key) for record in records]
    values = [value for value in values if value is not None]
    return float(np.median(values)) if values else np.nan


def _compiles(records):
    return any(record.get("compile") for record in records)


def _fewer_updated(records, reference):
    """Tell whether the runs trained fewer parameters than the baseline's."""
    counts, baseline = (
        {record["updated_parameters"] for record in runs if "updated_parameters" in record}
        for runs in (records, reference)
    )
    return bool(counts and baseline) and min(counts) < max(baseline)


def _outcome(own, records):
    """Return status ("ok" if any round has timings), note and grade of a technique."""
    runs = own.groupby("round").first()
    timed = runs[runs.status == "ok"]
    bad = runs[runs.status != "ok"]
    if timed.empty:
        return {"status": runs.status.iloc[-1], "note": runs.note.iloc[-1]}
    notes = [note for note in timed.note.unique() if note]
    notes += [f"round {index}: {run.status}: {run.note}" for index, run in bad.iterrows()]
    line = {"status": "ok", "note": "; ".join(notes), "grade": "clean"}
    if (tainted := timed[timed.grade == "tainted"]).empty:
        return line
    quality = records.get(tainted.run_id.iloc[0], {}).get("quality") or {}
    reason = " and ".join(quality.get("reasons") or [])
    return line | {"grade": "tainted", "tainted_rounds": len(tainted), "reason": reason}
