"""Rows of results.csv -> one line per technique: times, ratios, intervals, verdicts.

Ratios are paired: within a round both scripts ran under the same conditions on the same batches,
so the step times of a round are divided, and the log ratios averaged over the rounds. The interval
is Student's t over the rounds, 95%. One round has no interval and no verdict. A time is the mean of
the same step times in the same way, so times divide to the ratios beside them. Losses are paired
like times, as differences.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import intervals, round_levels
from Utils.analysis.intervals import LossDifference, Ratio
from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import plural
from Utils.results import selection
from Utils.scripts import ladder, own_names

NOTES = "; "  # between the notes of a row
MEMORY_KINDS = ("weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib")
COLUMNS = [
    "label",  # a short name
    "base",  # the script that `speedup` is over
    "unit",  # of batches, which is meant where this list says tokens
    *("parent", "status"),
    "notes",  # a list of texts
    *("rounds", "grade"),  # with timings; "tainted" if any of these is
    *("tainted_rounds", "reason"),  # the reason of the first
    "step_ms",  # `intervals.typical_ms` of the rounds, for the requested batch
    *("p20_ms", "p80_ms"),  # of all timed steps, for the requested batch
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


@dataclass(frozen=True)
class Measured:
    """What the lines of a summary are made of. Series are indexed by technique, then by round."""

    baseline: str
    techniques: dict  # of the ladder, by name; none on another base
    timed: pd.DataFrame  # rows of timed steps, their times for the requested batch
    step_ms: pd.Series
    losses: pd.Series
    step_losses: pd.Series  # by step, too
    records: dict  # lists of records, by technique

    @classmethod
    def of(cls, rows, records):
        baseline, timed = selection.baseline(rows), selection.timed(rows)
        by_step = rows[rows.status == "ok"].set_index(["technique", "round", "step"]).loss
        return cls(
            baseline=baseline,
            techniques=ladder.techniques() if baseline == ladder.BASELINE else {},
            timed=round_levels.scaled(timed),
            step_ms=round_levels.step_ms(timed),
            losses=intervals.losses(timed),
            step_losses=by_step[~by_step.index.duplicated()],  # our runs have no step twice
            records={
                name: [records[run_id] for run_id in runs.run_id.unique() if run_id in records]
                for name, runs in timed.groupby("technique")
            },
        )

    def parent(self, name):
        if name in self.techniques:
            return self.techniques[name].parent
        return own_names.parent(name, self.step_ms)


def summarize(rows, records=None):
    """Return a DataFrame with one line per technique, in ladder order, indexed by technique, with
    COLUMNS. Unknown values are NaN, unknown Ratios and LossDifferences are false.

    rows: selected rows. records: of those runs, from `results.records`; without them their columns
    are empty.
    """
    records = records or {}
    measured = Measured.of(rows, records)
    present = rows.technique.unique()
    in_ladder = [name for name in measured.techniques if name in present]
    names = own_names.ordered([*in_ladder, *(name for name in present if name not in in_ladder)])
    lines = []
    for name, label in zip(names, own_names.labels(names), strict=True):
        own_rows = rows[rows.technique == name]
        parent = measured.parent(name)
        line = {"technique": name, "label": label, "parent": parent, "base": measured.baseline}
        line |= {"unit": own_rows.unit.iloc[0], **_outcome(own_rows, records)}
        line |= {"speedup": Ratio(), "parent_speedup": Ratio(), "loss_difference": LossDifference()}
        if name in measured.step_ms:
            _add_times(line, measured, own_rows)
            line |= _losses(measured, name, own_rows)
            model, scale = own_rows.model.iloc[0], _scale(own_rows)
            line |= from_records(line, measured.records[name], model, scale)
            parents_records = measured.records.get(parent, [])
            if _compiles(measured.records[name]) and not _compiles(parents_records):
                steps = intervals.break_even(rows, name, parent, measured.step_ms)
                line["break_even_steps"] = steps
        lines.append(line)
    return pd.DataFrame(lines, columns=["technique", *COLUMNS]).set_index("technique")


def _scale(own_rows):
    """Return the factor from a step's time to that of a step on the requested batch."""
    last = own_rows.iloc[-1]
    return last.requested_batch_size / last.batch_size


def _add_times(line, measured, own_rows):
    """Add the columns from step times, and peak memory, and notes on rounds that differ."""
    name = line["technique"]
    own_ms = measured.step_ms[name]
    last = own_rows.iloc[-1]
    line["rounds"] = len(own_ms)
    line["step_ms"] = intervals.typical_ms(own_ms)
    steps = measured.timed.step_ms[measured.timed.technique == name]
    line["p20_ms"], line["p80_ms"] = np.percentile(steps, [20, 80])
    tokens = last.requested_batch_size * last.seq_len
    line["tokens_per_second"] = tokens / line["step_ms"] * 1e3
    if (own_rows.batch_size != own_rows.requested_batch_size).any():
        line["own_batch"] = last.batch_size
    by_run = own_rows[own_rows.status == "ok"].groupby("run_id")
    for figure in ("first_step_s", "peak_memory_mib"):
        line[figure] = by_run[figure].first().median()
    for column, reference in (("speedup", measured.baseline), ("parent_speedup", line["parent"])):
        if reference in measured.step_ms:
            line[column] = intervals.speedup(measured.step_ms[reference], own_ms)
            line["notes"] += _rounds_apart(reference, measured.step_ms[reference], own_ms)


def _rounds_apart(reference, reference_ms, own_ms):
    """Return a note if a ratio is from other rounds than the times beside it, so that these do not
    divide to it; a list."""
    common = reference_ms.index.intersection(own_ms.index)
    if len(common) == len(own_ms) == len(reference_ms):
        return []
    return [
        f"ratio to {reference} from {plural(len(common), 'common round')}: it has "
        f"{len(reference_ms)}, this {len(own_ms)}"
    ]


def _losses(measured, name, own):
    """Return the columns from losses. Losses on other batches cannot be paired."""
    line = {"loss": measured.losses[name].mean()}
    is_own = own_names.split(name)
    if is_own and measured.step_losses[name].isna().all():
        return line  # it calls no backward: nothing to judge
    records = measured.records[name]
    baseline = measured.baseline
    same_batch = own.batch_size.eq(own.requested_batch_size).all()
    if baseline in measured.losses and name != baseline and same_batch:
        if any(record.get("dataset_facts", {}).get("streamed") for record in records):
            line["parity"] = "other batches"
        else:
            losses = measured.losses[name]
            if is_own and own.seed.nunique() == 1:  # its own: rounds repeat each other
                losses = losses.iloc[:1]
            difference = intervals.loss_difference(measured.losses[baseline], losses)
            line["loss_difference"] = difference
            fewer = _fewer_updated(records, measured.records[baseline])
            technique = measured.techniques.get(name)
            in_float8 = technique is not None and "float8" in technique.needs
            line["parity"] = intervals.parity(
                measured.step_losses[baseline],
                measured.step_losses[name],
                own.model.iloc[0],
                "float8" if in_float8 else "bfloat16",
                fewer,
            )
    if not np.isfinite(measured.timed.loss[measured.timed.technique == name]).all():
        line["loss_difference"] = LossDifference(diverged=True)
    return line


def from_records(line, records, model, scale=1.0):
    """Return the columns from the records of a technique's runs. scale: of `_scale`."""
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
            columns["floor_ms"] = scale * (limits.get("floor_ms") or np.nan)
            columns["floor_speedup"] = line["step_ms"] / columns["floor_ms"]

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
    """Return status ("ok" if any round has timings), notes and grade of a technique."""
    runs = own.groupby("round").first()
    timed = runs[runs.status == "ok"]
    bad = runs[runs.status != "ok"]
    if timed.empty:
        last = runs.iloc[-1]
        return {"status": last.status, "notes": [last.note] if last.note else []}
    texts = [text for note in timed.note.unique() for text in note.split(NOTES) if text]
    notes = list(dict.fromkeys(texts))
    notes += [f"round {index}: {run.status}: {run.note}" for index, run in bad.iterrows()]
    line = {"status": "ok", "notes": notes, "grade": "clean"}
    if (tainted := timed[timed.grade == "tainted"]).empty:
        return line
    quality = records.get(tainted.run_id.iloc[0], {}).get("quality") or {}
    reason = " and ".join(quality.get("reasons") or [])
    return line | {"grade": "tainted", "tainted_rounds": len(tainted), "reason": reason}
