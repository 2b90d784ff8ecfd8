"""A study -> its figures, computed once: a line per technique with times, ratios, verdicts.

Ratios are paired within rounds, losses too. A time is a mean over rounds, and the quotient of two
times is their ratio.
"""

from argparse import Namespace
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
PARTS = ("memory", "compile", "quality")  # parts of a record
MEMORY_KINDS = ("weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib")
FIGURES = [*MEMORY_KINDS, "reserved_mib", "mean_power_w"]  # medians of records
COLUMNS = [
    "label",
    "parent",  # NaN for a base
    "base",  # the script that speedup is over
    "unit",  # of batches; names say tokens for any unit
    "status",
    "reason",  # why there is no timing, or ""
    "notes",  # a list of texts
    "rounds",  # with timings
    "grade",  # tainted if any round is
    "quality",  # the grade with its reason
    "step_ms",  # mean of the rounds, for the requested batch
    "p20_ms",  # percentiles of all timed steps
    "p80_ms",
    "tokens_per_second",
    "first_step_s",
    "own_batch",  # the batch_size of a technique that chose its batch
    "compiled",
    "speedup",
    "parent_speedup",
    "break_even_steps",  # over the parent, inf for never
    "loss",  # nats a token, on held-out text or as the mean of the last timed steps
    "loss_difference",
    "parity",  # exact, numerics changed, model changed, other batches, another optimizer
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
    """

    study: Study
    figures: pd.DataFrame
    ablation: pd.DataFrame

    @property
    def all_figures(self) -> pd.DataFrame:
        return pd.concat([self.figures, self.ablation]) if len(self.ablation) else self.figures


@dataclass(frozen=True)
class _Script:
    """Runs of a technique, their timed steps, and the records of those with timings.

    step_ms: by round, None without timings.
    """

    runs: pd.DataFrame
    timed: pd.DataFrame
    records: list[dict]
    step_ms: pd.Series | None


def _scripts(rows, records):
    """Return a _Script for each technique that rows have, by name."""
    step_ms = intervals.step_ms(selection.timed(rows))
    scripts = {}
    for name, runs in rows.groupby("technique"):
        timed = selection.timed(runs)
        recorded = [records[run_id] for run_id in timed.run_id.unique() if run_id in records]
        scripts[name] = _Script(runs, timed, recorded, step_ms.get(name))
    return scripts


def summarize(chosen: Study) -> Summary:
    """Return the Summary of a study. Columns from records are empty without records."""
    figures = _figures(chosen, chosen.rows, chosen.order)
    if chosen.all_rows is chosen.rows:
        return Summary(chosen, _corrected(figures), figures.iloc[:0])

    variants = [name for name in chosen.order if name not in figures.index]
    ablation = _figures(chosen, chosen.all_rows, variants)
    corrected_together = _corrected(pd.concat([figures, ablation]))
    return Summary(chosen, _corrected(figures), corrected_together.loc[ablation.index])


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
    return dict(summarize(study.newest(rows, with_ablation=True)).figures.iterrows())


def _figures(chosen, rows, order):
    """Return the figures of the techniques of `order` that rows have, verdicts not corrected."""
    scripts = _scripts(rows, chosen.records)
    names = [name for name in order if name in scripts]
    labels = _labels(chosen, names)
    figures = [_figures_of(chosen, name, labels[name], scripts) for name in names]
    figures = pd.DataFrame(figures, pd.Index(names, name="technique"), COLUMNS)

    # Only what is compiled over its parent can break even, and only if it is significantly
    # different: so Holm corrects first.
    compiled = figures[figures.compiled.notna()]
    compiled = compiled[~compiled.parent.isin(compiled.index)]
    compiled = compiled.assign(parent_speedup=_corrected(figures).parent_speedup[compiled.index])
    return figures.assign(break_even_steps=_break_even(rows, compiled, scripts))


def _corrected(figures):
    """Return figures with the verdicts of each column corrected by Holm."""
    corrected = {
        column: pd.Series(intervals.holm(figures[column]), figures.index, dtype=object)
        for column in ("parent_speedup", "loss_difference")
    }
    return figures.assign(**corrected)


def _labels(chosen, names):
    """Return short names for a table or chart by name: `+technique` on a user's script."""
    own_names = chosen.names("own")
    labels = {}
    for name in names:
        parent = chosen.parent(name)
        change = chosen.change(name)
        labels[name] = name
        if change and name in own_names and parent != chosen.base and parent in names:
            _, technique = change[0]
            labels[name] = f"+{technique}"

    shown = list(labels.values())
    return {name: label if shown.count(label) == 1 else name for name, label in labels.items()}


def _figures_of(chosen, name, label, scripts):
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
    line |= times(runs, script.timed, script.step_ms)
    line |= _ratios(script, line, scripts)
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

    grade = quality = "clean"
    tainted = timed[timed.grade == "tainted"]
    if len(tainted):
        grade = "tainted"
        quality = f"tainted in {len(tainted)} of {len(timed)} rounds"
        recorded = records.get(tainted.run_id.iloc[0], {}).get("quality") or {}
        reasons = recorded.get("reasons")  # of the first tainted run
        if reasons:
            quality += f": {' and '.join(reasons)}"
    return {
        "status": "ok",
        "reason": "",
        "rounds": len(timed),
        "notes": notes,
        "grade": grade,
        "quality": quality,
    }


def times(runs: pd.DataFrame, timed: pd.DataFrame, step_ms: pd.Series) -> dict:
    """Return the columns of times, rates and peak memory. step_ms: by round."""
    last = runs.iloc[-1]
    typical_ms = intervals.typical(step_ms)
    p20_ms, p80_ms = np.percentile(intervals.scaled(timed).step_ms, [20, 80])
    by_run = runs[runs.status == "ok"].groupby("run_id")
    columns = {
        "step_ms": typical_ms,
        "tokens_per_second": last.requested_batch_size * last.seq_len / typical_ms * 1e3,
        "p20_ms": p20_ms,
        "p80_ms": p80_ms,
        **by_run[["first_step_s", "peak_memory_mib"]].first().median(),
    }
    if (runs.batch_size != runs.requested_batch_size).any():
        columns["own_batch"] = last.batch_size
    return columns


def _ratios(script, line, scripts):
    """Return the columns of speedups, from the rounds that both have, and notes with remarks."""
    columns = {"notes": line["notes"]}
    for column, name in (("speedup", line["base"]), ("parent_speedup", line["parent"])):
        if name not in scripts or scripts[name].timed.empty:
            continue
        reference = scripts[name]
        ratio = intervals.speedup(reference.step_ms, script.step_ms)

        # The times of other rounds do not divide to the ratio.
        rounds = script.step_ms.index
        reference_rounds = reference.step_ms.index
        if not rounds.equals(reference_rounds):
            common = plural(len(rounds.intersection(reference_rounds)), "common round")
            counts = f"it has {len(reference_rounds)}, this {len(rounds)}"
            columns["notes"].append(f"ratio to {name} from {common}: {counts}")

        clean = _clean_rounds(script) & _clean_rounds(reference)
        if column == "parent_speedup" and len(clean) < CLEAN_ROUNDS:
            ratio = replace(ratio, p=np.nan)
        columns[column] = ratio
    return columns


def _clean_rounds(script):
    return {*script.runs["round"][script.runs.grade == "clean"]}


def _losses(chosen, name, scripts):
    """Return the columns of losses; those of other batches or another optimizer have no pair."""
    script = scripts[name]
    runs = script.runs
    base = scripts.get(chosen.base)
    losses = intervals.losses(script.timed)
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
    technique = chosen.ladder.scripts.get(name) if chosen.is_ours else None
    stated = technique.stated_parity if technique else ""
    if stated == "another optimizer":
        return columns | {"parity": stated}

    if not chosen.is_ours and runs.seed.nunique() == 1:  # a fixed seed: rounds repeat each other
        losses = losses.iloc[:1]
    difference = intervals.loss_difference(intervals.losses(base.timed), losses)
    rounding = "float8" if technique and "float8" in technique.needs else "bfloat16"
    parity = _parity(script, base, rounding)
    if stated == "approximate" and parity == "model changed":
        parity = "numerics changed"
    return {"loss_difference": difference, "parity": parity} | columns


def _parity(script, base, rounding):
    """Return the parity of a script with its base, both a _Script."""
    updated = min((r.get("updated_parameters", np.inf) for r in script.records), default=np.inf)
    updated_by_base = max((r.get("updated_parameters", 0) for r in base.records), default=0)
    model = script.runs.model.iloc[0]
    step_losses = _step_losses(base.runs), _step_losses(script.runs)
    return intervals.parity(*step_losses, model, rounding, updated < updated_by_base)


def _step_losses(runs):
    """Return the losses of a script by round and step."""
    losses = runs[runs.status == "ok"].set_index(["round", "step"]).loss
    return losses[~losses.index.duplicated()]  # a user's script may have a step twice


def from_records(line: dict, records: list[dict], model: str, scale: float = 1.0) -> dict:
    """Return the columns from records of runs.

    line: has step_ms and tokens_per_second.
    scale: factor from a step to one of the requested batch.
    """
    recorded = []
    for record in records:
        memory, compiled, quality = (record.get(part) or {} for part in PARTS)
        recorded.append(memory | compiled | quality)
    values = pd.DataFrame(recorded)
    values = values.reindex(columns=[*FIGURES, "graphs", "recompilations", "cache"])
    medians = values.drop(columns="cache").astype(float).median()
    columns = medians[FIGURES].to_dict()

    if not np.isnan(medians.graphs):
        columns["compiled"] = plural(round(medians.graphs), "graph")
        caches = values["cache"].dropna().unique()
        if len(caches):
            columns["compiled"] += f", {' or '.join(sorted(caches))} cache"
        if medians.recompilations:
            columns["compiled"] += f"; {medians.recompilations:.0f} recompiled"

    limits = records[-1].get("limits") if records else None
    if limits:
        columns |= _limits(limits, line, medians, model, scale)
    columns["hours_per_billion"] = 1e9 / line["tokens_per_second"] / 3600
    columns["kwh_per_billion"] = columns["mean_power_w"] / 1e3 * columns["hours_per_billion"]
    return columns


def _limits(limits, line, medians, model, scale):
    """Return the columns that compare a rate and a time with limits. medians: the records'."""
    tflops = (limits["flops_per_token"] or np.nan) * line["tokens_per_second"] / 1e12
    ceilings = (limits["ceilings"] or {}).get("matmul_tflops", {})
    columns = {
        "precision": limits["precision"],
        "tflops": tflops,
        "ceiling_share": tflops / ceilings.get(limits["precision"], np.nan),
        "mfu": tflops / (limits["datasheet_tflops"] or np.nan),
    }

    # The floor is modelled for AdamW in float32, so not for weights and state of another size.
    size_mib = medians.weights_mib + medians.optimizer_state_mib
    modelled_mib = 12 * CONFIGS[model].parameters() / 2**20 if model in CONFIGS else np.nan
    has_another_size = abs(size_mib / modelled_mib - 1) > 0.01  # False if unknown
    if not has_another_size:
        columns["floor_ms"] = scale * (limits.get("floor_ms") or np.nan)
        columns["floor_speedup"] = line["step_ms"] / columns["floor_ms"]
    return columns


def _break_even(rows, compiled, scripts):
    """Return the steps after which compiled scripts have saved the extra cost of their warm-up.

    A Series: inf for never, without scripts that have no detectable difference to their parents.
    compiled: their figures.
    """
    # The extra cost of warm-up: how much slower its steps are than a run's usual step.
    steps = selection.numbered(rows[rows.technique.isin({*compiled.index, *compiled.parent})])
    timed_ms = steps.step_ms.where(steps.phase == "timed")
    usual_ms = timed_ms.groupby(steps.run_id).transform("median")
    warmup = steps.assign(extra_ms=steps.step_ms - usual_ms)[steps.step < 0]
    by_run = warmup.groupby(["round", "technique", "run_id"]).extra_ms.sum()
    extra_ms = by_run.groupby(["round", "technique"]).mean().unstack()
    extra_ms = extra_ms.reindex(columns=rows.technique.unique())

    break_even = {}
    for name, line in compiled.iterrows():
        if line.parent_speedup.verdict not in ("", Ratio.no_difference):
            saved_ms = (scripts[line.parent].step_ms - scripts[name].step_ms).mean()
            more_ms = np.fmax(0, (extra_ms[name] - extra_ms[line.parent]).mean())
            break_even[name] = np.ceil(more_ms / saved_ms) if saved_ms > 0 else np.inf
    return pd.Series(break_even, dtype=float)
