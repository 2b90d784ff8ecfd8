"""Rows of results.csv -> one line a technique: medians, ratios, intervals, verdicts.

A ratio is paired: within a round both scripts ran under the same conditions on the same batches,
so the median step times of that round are divided, and the rounds' log ratios averaged. The
interval is Student's t over the rounds, 95%. With one round there is none, and no verdict.
Losses are paired in the same way, as differences.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from Utils import ladder, results, settings, variants
from Utils.config import CONFIGS
from Utils.errors import UserError, one_line

GROUP = ["device", "torch", "model", "dataset", "batch", "seq_len", "world_size", "code"]
BASELINE = ladder.BASELINE
LAST_STEPS = 10  # whose mean loss is a run's loss
CONFIDENCE = 0.95
NO_INTERVAL = "one round: no interval"
MEMORY_KINDS = ("weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib")
INIT_STD = 0.02  # of GPT-2's weights, and so 0.02 sqrt(n_embd) that of a logit at the start
ROUNDING = 2**-4  # of that: what the first losses may differ by; docs/METHOD.md has the figures
TAINTED = "tainted: "  # begins the last of a run's notes
OWN_BATCH = r"own batch: \d+ in place of (\d+)"  # the note of a run that chose its own
MARK = "<!-- table -->"


def select(rows, device_name=None, with_variants=False):
    """The rows that may be compared with one another, and a sentence on what was left out, or "".

    rows: DataFrame of results.COLUMNS. device_name: part of a device's name; without it the
    newest run decides. Of several runs of a technique in one round, the newest counts.
    with_variants: keep the rows of an ablation, which are no techniques of anyone's.
    Runs in several processes, which `make scaling` compares, are left out where there are others.
    Raises UserError where no device has that name, and where nothing is left.
    """
    several = rows[rows.world_size > 1]
    if len(several) < len(rows):
        rows = rows[rows.world_size == 1]
    if not with_variants:
        names = [name for name in rows.technique.unique() if variants.parse(name)]
        rows = rows[~rows.technique.isin(names)]
        if names and rows.empty:
            raise UserError("the results hold nothing but variants; `make ablate` shows them")
    candidates = rows
    if device_name:
        candidates = rows[rows.device.str.contains(device_name, case=False, regex=False)]
        if candidates.empty:
            known = ", ".join(rows.device.unique())
            raise UserError(f"no results of a device named {device_name!r}; there are {known}")
    newest, parts = candidates.run_id.max(), groups(rows)
    same = next(group for _, group in parts if newest in set(group.run_id))
    latest = same.groupby(["technique", "round"]).run_id.transform("max")
    chosen = same[same.run_id == latest]

    left_out = [f"{count(group)} of {name}" for name, group in parts if group is not same]
    if rows.world_size.eq(1).all() and len(several):
        left_out.append(f"{count(several)} in several processes")
    repeated = same[~same.run_id.isin(chosen.run_id)]
    if len(repeated):
        left_out.append(f"{count(repeated)} repeated since")
    return chosen, "left out: " + "; ".join(left_out) if left_out else ""


def groups(rows):
    """The rows that may be compared with one another, with what they have in common in words: a
    list of (words, rows), the rows with two columns more: `code`, and `batch`, the batch_size that
    was asked for."""
    # An idea that is tried on top of a commit is compared with that commit's runs.
    rows = rows.assign(code=rows.commit.str.removesuffix("-dirty"), batch=asked_batch(rows))
    return [
        (
            f"{model} {B}x{T} on {f'{ranks} x ' if ranks > 1 else ''}{device} "
            f"(torch {version}, {dataset}, commit {code or 'unknown'})",
            group,
        )
        for (device, version, model, dataset, B, T, ranks, code), group in rows.groupby(GROUP)
    ]


def asked_batch(rows):
    """The batch_size that was asked for: a technique may choose its own; its note then says so."""
    asked = pd.to_numeric(rows.note.astype(str).str.extract(OWN_BATCH, expand=False))
    return asked.fillna(rows.batch_size).astype(int)


def is_tainted(rows, records):
    """Which rows are of a tainted run, by their note or their record: a boolean Series."""
    qualities = {run_id: record.get("quality") for run_id, record in records.items()}
    tainted = {
        run_id
        for run_id, quality in qualities.items()
        if isinstance(quality, dict) and quality.get("grade") == "tainted"
    }
    return rows.note.str.contains(TAINTED, regex=False) | rows.run_id.isin(tainted)


def count(rows):
    runs = rows.run_id.nunique()
    return f"{runs} run{'s' * (runs > 1)}"


def describe(rows):
    """What selected rows have in common, in one line."""
    first, rounds, batch = rows.iloc[0], rows["round"].nunique(), asked_batch(rows).iloc[0]
    commits = ", ".join(commit or "unknown" for commit in rows.commit.unique())
    return (
        f"{first.device}, torch {first.torch}, {first.model}, {batch}x{first.seq_len} "
        f"tokens a step, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit {commits}"
    )


def summarize(rows, records=None):
    """One line a technique, in ladder order, as a DataFrame indexed by technique.

    rows: selected rows. records: of those runs, from `results.records`; without them their part is
    empty. What is not known is NaN.

    - status, note; parent; rounds (with timings); grade ("clean", or "tainted" with the reasons)
    - median_ms, p20_ms, p80_ms (of all timed steps); tokens_per_second; first_step_s
    - own_batch, the batch_size of a technique that chose its own
    - for the ratio of step times, of as many tokens, over the baseline and over the parent:
      speedup, speedup_low, speedup_high, verdict and parent_speedup, ... likewise
    - loss (nats a token, mean of the last timed steps); loss_difference from the baseline,
      loss_low, loss_high, loss_verdict; parity ("exact", "numerics changed", "model changed",
      "other batches")
    - peak_memory_mib, and by kind weights_mib, gradients_mib, optimizer_state_mib, rest_mib;
      reserved_mib, device_mib
    - graphs, recompilations, compile_cache; break_even_steps against the parent, inf for never
    - precision; tflops reached; ceiling_share and mfu (of 1); floor_ms and floor_speedup, how many
      times faster the modelled floor is
    - hours_per_billion, kwh_per_billion, joules_per_million (tokens); mean_power_w
    """
    known, records = ladder.techniques(), records or {}
    rows = rows.assign(batch=asked_batch(rows))
    order = [*known, *rows.technique[~rows.technique.isin(known)].unique()]
    timed = rows[(rows.status == "ok") & (rows.phase == "timed")]
    medians = round_medians(timed)
    losses = timed.groupby(["technique", "round"]).loss.apply(_last)
    by_step = rows[rows.status == "ok"].set_index(["technique", "round", "step"]).loss
    by_step = by_step[~by_step.index.duplicated()]  # a step twice is no run of ours
    recorded = {
        name: [records[run_id] for run_id in own.run_id.unique() if run_id in records]
        for name, own in timed.groupby("technique")
    }

    lines = []
    for name in order:
        own = rows[rows.technique == name]
        if own.empty:
            continue
        parent = known[name].parent if name in known else None
        line = {"technique": name, "parent": parent, **_outcome(own)}
        if name in medians:
            steps = timed.step_ms[timed.technique == name]
            line["rounds"] = len(medians[name])
            line["p20_ms"], line["median_ms"], line["p80_ms"] = np.percentile(steps, [20, 50, 80])
            tokens = own.batch_size.iloc[-1] * own.seq_len.iloc[0]
            line["tokens_per_second"] = tokens / line["median_ms"] * 1e3
            same_batches = own.batch_size.eq(own.batch).all()
            if not same_batches:
                line["own_batch"] = own.batch_size.iloc[-1]
            ok = own[own.status == "ok"].groupby("round")
            line["first_step_s"] = ok.first_step_s.first().median()
            line["peak_memory_mib"] = ok.peak_memory_mib.first().median()
            line["loss"] = losses[name].mean()
            if BASELINE in losses and name != BASELINE and same_batches:
                if any(one.get("dataset_facts", {}).get("streamed") for one in recorded[name]):
                    line["parity"] = "other batches"  # whose losses have no counterpart
                else:
                    line |= loss_difference(losses[BASELINE], losses[name])
                    fewer = _fewer_updated(recorded[name], recorded[BASELINE])
                    line["parity"] = parity(by_step[BASELINE], by_step[name], own.iloc[0], fewer)
            if not np.isfinite(timed.loss[timed.technique == name]).all():
                line["loss_verdict"] = "diverged"
            for prefix, other in (("", BASELINE), ("parent_", parent)):
                if other in medians and (other != name or prefix == ""):
                    ratio = speedup(medians[other], medians[name])
                    line |= {prefix + key: value for key, value in ratio.items()}
            line |= _from_records(line, recorded[name], own.model.iloc[0])
            if _compiles(recorded[name]) and not _compiles(recorded.get(parent, [])):
                line["break_even_steps"] = break_even(rows, name, parent)
        lines.append(line)
    return pd.DataFrame(lines, columns=["technique", *COLUMNS]).set_index("technique")


COLUMNS = [
    *("parent", "status", "note", "grade", "rounds", "median_ms", "p20_ms", "p80_ms"),
    *("tokens_per_second", "first_step_s", "own_batch"),
    *(
        prefix + key
        for prefix in ("", "parent_")
        for key in ("speedup", "speedup_low", "speedup_high", "verdict")
    ),
    *("loss", "loss_difference", "loss_low", "loss_high", "loss_verdict", "parity"),
    *("peak_memory_mib", "weights_mib", "gradients_mib", "optimizer_state_mib", "rest_mib"),
    *("reserved_mib", "device_mib", "graphs", "recompilations", "compile_cache"),
    *("break_even_steps", "precision", "tflops", "ceiling_share", "mfu"),
    *("floor_ms", "floor_speedup", "hours_per_billion", "kwh_per_billion"),
    *("joules_per_million", "mean_power_w"),
]


def _from_records(line, records, model):
    """The columns that come from the records of a technique's runs."""
    found = {kind: _median(records, "memory", kind) for kind in (*MEMORY_KINDS, "reserved_mib")}
    if "grade" not in line and records and all("quality" in record for record in records):
        found["grade"] = "clean"
    found["device_mib"] = _median(records, "quality", "used_memory_mib")
    found["graphs"] = _median(records, "compile", "graphs")
    found["recompilations"] = _median(records, "compile", "recompilations")
    caches = [record["compile"]["cache"] for record in records if record.get("compile")]
    found["compile_cache"] = " or ".join(sorted({cache for cache in caches if cache}))

    rate = line["tokens_per_second"]
    if limits := (records[-1].get("limits") if records else None):
        found["precision"] = precision = limits["precision"]
        found["tflops"] = limits["flops_per_token"] * rate / 1e12
        ceilings = (limits["ceilings"] or {}).get("matmul_tflops", {})
        found["ceiling_share"] = found["tflops"] / ceilings.get(precision, np.nan)
        found["mfu"] = found["tflops"] / (limits["datasheet_tflops"] or np.nan)
        if _updates_as_modelled(found, model):
            found["floor_ms"] = limits.get("floor_ms") or np.nan
            found["floor_speedup"] = line["median_ms"] / found["floor_ms"]

    found["hours_per_billion"] = 1e9 / rate / 3600
    found["mean_power_w"] = power = _median(records, "quality", "mean_power_w")
    found["joules_per_million"] = power * 1e6 / rate
    found["kwh_per_billion"] = power / 1e3 * found["hours_per_billion"]
    return found


def _updates_as_modelled(found, model):
    """Whether an update moves what the modelled floor takes it to, that of AdamW in float32 over
    the model's own parameters, by what weights and state hold. So it is said where that is not
    known."""
    held = found["weights_mib"] + found["optimizer_state_mib"]
    modelled = 3 * 4 * CONFIGS[model].parameters() / 2**20 if model in CONFIGS else np.nan
    return not abs(held / modelled - 1) > 0.01


def _median(records, part, key):
    """Of a figure over the records that have it; NaN where none has."""
    values = [(record.get(part) or {}).get(key) for record in records]
    values = [value for value in values if value is not None]
    return float(np.median(values)) if values else np.nan


def _compiles(records):
    return any(record.get("compile") for record in records)


def _fewer_updated(records, reference):
    """Whether the runs trained fewer parameters than the baseline's did."""
    own, other = (
        {record["updated_parameters"] for record in some if "updated_parameters" in record}
        for some in (records, reference)
    )
    return bool(own and other) and min(own) < max(other)


def _last(losses):
    return losses.tail(LAST_STEPS).mean()


def round_medians(timed):
    """Milliseconds: the median step of each technique in each round, a Series indexed by both. Of
    a technique that chose its own batch, what as many tokens take as the others' steps have."""
    by_run = timed.assign(batch=asked_batch(timed)).groupby(["technique", "round"])
    return by_run.step_ms.median() * by_run.batch.first() / by_run.batch_size.first()


def speedup(reference, medians):
    """How many times faster `medians` is than `reference`, from the rounds that both have.

    reference, medians: Series of milliseconds, indexed by round. Returns speedup (geometric mean),
    speedup_low and speedup_high (95%, NaN with one round) and a verdict; {} without a common round.
    """
    logs = np.log(reference / medians).dropna()
    if logs.empty:
        return {}
    return as_ratio(*interval(logs))


def as_ratio(mean, low, high):
    """speedup, speedup_low, speedup_high and verdict of a mean log ratio and its interval, which
    is NaN where there is none."""
    verdict = NO_INTERVAL
    if not np.isnan(low):
        verdict = "faster" if low > 0 else "slower" if high < 0 else "no detectable difference"
    values = {"speedup": mean, "speedup_low": low, "speedup_high": high}
    return {**{key: float(np.exp(value)) for key, value in values.items()}, "verdict": verdict}


def loss_difference(reference, losses):
    """How much higher `losses` are than `reference`, from the rounds that both have.

    reference, losses: Series of nats a token, indexed by round. Returns loss_difference, loss_low
    and loss_high (95%, NaN with one round) and a loss_verdict; {} without a common round.
    """
    differences = (losses - reference).dropna()
    if differences.empty:
        return {}
    mean, low, high = interval(differences)
    verdict = NO_INTERVAL
    if (differences == 0).all():
        verdict = "indistinguishable"
    elif len(differences) > 1:
        verdict = "worse" if low > 0 else "better" if high < 0 else "indistinguishable"
    keys = ("loss_difference", "loss_low", "loss_high", "loss_verdict")
    return dict(zip(keys, (mean, low, high, verdict), strict=True))


def parity(reference, losses, shape, fewer_updated=False):
    """Whether two techniques compute the same: "exact" where the losses of all steps are the same
    to the last bit, "model changed", else "numerics changed".

    Before the first update both have the same weights and see the same batch, so that the loss of
    the first step compares the two models themselves. bfloat16 rounds to 2^-9, relatively; beyond
    `ROUNDING` deviations of a logit, shared among the step's tokens, it is not rounding.
    reference, losses: Series of nats, indexed by round and step. shape: a row, for model, batch
    and length. fewer_updated: whether parameters of the baseline's were never updated.
    """
    common = losses.index.intersection(reference.index)
    differences = losses[common] - reference[common]
    if len(common) and differences.eq(0).all():
        return "exact"
    first = differences[common.get_level_values("step") == 0].dropna()
    if shape.model in CONFIGS and len(first):
        deviation = INIT_STD * CONFIGS[shape.model].n_embd ** 0.5
        rounding = ROUNDING * deviation / (shape.batch_size * shape.seq_len) ** 0.5
        if (first**2).mean() ** 0.5 > rounding:
            return "model changed"
    return "model changed" if fewer_updated else "numerics changed"


def break_even(rows, name, parent):
    """After how many steps a script that compiles has overtaken its parent, from the rounds that
    both have: what its warm-up cost more, over what a step saves. inf where it saves nothing; NaN
    where that cannot be told, by too wide an interval or for want of a parent."""

    def warmup_and_median(technique):
        own = rows[(rows.technique == technique) & (rows.status == "ok")]
        medians = own[own.phase == "timed"].groupby("round").step_ms.median()
        first = own[(own.phase == "warmup") | (own.step == 0)].groupby("round").step_ms
        return first.sum() - first.count() * medians, medians  # milliseconds, beyond usual steps

    cost, median = warmup_and_median(name)
    parents_cost, parents_median = warmup_and_median(parent)
    verdict = speedup(parents_median, median).get("verdict", "no detectable difference")
    if verdict == "no detectable difference":
        return np.nan
    saved = (parents_median - median).mean()
    if saved <= 0:
        return np.inf
    return float(np.ceil(max(0.0, (cost - parents_cost).mean()) / saved))


def interval(values):
    """(mean, low, high) of independent values: Student's t, 95%; low and high are NaN for one."""
    mean, n = values.mean(), len(values)
    if n == 1:
        return mean, np.nan, np.nan
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std() / n**0.5
    return mean, mean - half, mean + half


def _outcome(own):
    """status, note and grade of a technique: "ok" where any round has timings."""
    runs = own.groupby("round").first()
    timed = runs[runs.status == "ok"]
    bad = runs[runs.status != "ok"]
    if timed.empty:
        return {"status": runs.status.iloc[-1], "note": runs.note.iloc[-1]}
    parts = [note.partition(TAINTED) for note in timed.note]
    notes = [*{before.removesuffix("; "): None for before, _, _ in parts if before}]
    notes += [f"round {index}: {run.status}: {run.note}" for index, run in bad.iterrows()]
    reasons = [after for _, mark, after in parts if mark]
    line = {"status": "ok", "note": "; ".join(notes)}
    if reasons:
        line["grade"] = f"tainted in {len(reasons)} of {len(parts)} rounds: {reasons[0]}"
    return line


# As a table -------------------------------------------------------------------------------------


def own_notes(summary):
    """The notes, less what the parent of a technique with timings has to say as well."""
    notes = []
    for note, parent, status in zip(summary.note, summary.parent, summary.status, strict=True):
        said = summary.note.get(parent, "").split("; ") if status == "ok" else []
        own = "; ".join(part for part in note.split("; ") if part not in said)
        notes.append(own.replace("|", "\\|"))  # a bar would end the table's cell
    return notes


def reason(line):
    """Why a technique has no timing."""
    return line.status.replace("_", " ") + (f": {line.note}" if line.note else "")


def ratio_text(line, prefix=""):
    """ "1.52x (1.48-1.56), faster", or "1.52x" with one round, or "" where it is not known."""
    value, low, high = (line[prefix + key] for key in ("speedup", "speedup_low", "speedup_high"))
    if pd.isna(value):
        return ""
    if pd.isna(low) or (line.name == BASELINE and not prefix):
        return f"{value:.2f}x"
    return f"{value:.2f}x ({low:.2f}-{high:.2f}), {line[prefix + 'verdict']}"


def loss_text(line):
    """ "+0.0120 (+0.0020 to +0.0220), worse", or "" where it is not known."""
    if line.loss_verdict == "diverged":
        return "diverged"
    if line.parity == "exact":
        return "0"
    if pd.isna(line.loss_difference):
        return ""
    if pd.isna(line.loss_low):
        return f"{line.loss_difference:+.4f}"
    interval = f"({line.loss_low:+.4f} to {line.loss_high:+.4f})"
    return f"{line.loss_difference:+.4f} {interval}, {line.loss_verdict}"


def break_even_text(line):
    """After how many steps compiling has paid for itself; "" where nothing was compiled anew."""
    if pd.isna(line.break_even_steps):
        return ""
    return "never" if np.isinf(line.break_even_steps) else f"{line.break_even_steps:,.0f} steps"


def table(rows, left_out="", records=None, price=None, folded=False):
    """The selected rows as GitHub-markdown tables with captions: speed and loss; memory; how far
    from the limit; what a billion tokens take. A string.

    records: as for `summarize`. price: of an hour of this device, in any currency. folded: for a
    page, where all but the ladder's speed and loss opens on a click.
    """
    summary = summarize(rows, records)
    speed, memory, limits, cost = columns(summary, price)
    measured = summary.median_ms.notna().to_numpy()
    beyond = summary.index.isin(ladder.beyond()) & folded
    sections = [
        _markdown(_only(speed, ~beyond)),
        _caption(rows, summary),
        *over_parents(summary),
        *([left_out] if left_out else []),
        *_section("Beyond the ladder", speed, beyond, folded),
        *_section("Memory at its peak, by kind", memory, measured, folded, "weights (MiB)"),
        *_section("How far from the limit", limits, measured, folded, "products in"),
        *_section("What a billion tokens take", cost, measured, folded),
    ]
    return "\n\n".join(sections)


def columns(summary, price=None):
    """The four tables of a summary: speed and loss; memory; how far from the limit; what a billion
    tokens take. Each a dict of texts, one a technique, by title; price as for `table`."""
    lines = [line for _, line in summary.iterrows()]

    def column(name, form, scale=1):
        values = summary[name]
        return ["" if pd.isna(value) else format(value * scale, form) for value in values]

    spread = zip(column("p20_ms", ",.1f"), column("p80_ms", ",.1f"), strict=True)
    speed = {
        "technique": list(summary.index),
        "status": [status.replace("_", " ") for status in summary.status],
        "median step (ms)": column("median_ms", ",.1f"),
        "p20-p80 (ms)": [f"{low}-{high}" if low else "" for low, high in spread],
        "tokens/s": column("tokens_per_second", ",.0f"),
        "speedup over parent": [ratio_text(line, "parent_") for line in lines],
        "over baseline": [ratio_text(line) for line in lines],
        "peak memory (MiB)": column("peak_memory_mib", ",.0f"),
        "loss": column("loss", ".3f"),
        "loss - baseline's": [loss_text(line) for line in lines],
        "what it computes": _words(summary.parity),
        "quality": _words(summary.grade),
        "note": own_notes(summary),
    }
    memory = {
        "technique": list(summary.index),
        **{
            f"{kind.removesuffix('_mib').replace('_', ' ')} (MiB)": column(kind, ",.0f")
            for kind in MEMORY_KINDS
        },
        "peak (MiB)": column("peak_memory_mib", ",.0f"),
        "peak (GiB)": column("peak_memory_mib", ".2f", 1 / 1024),
        "held by torch (MiB)": column("reserved_mib", ",.0f"),
        "used on the device (MiB)": column("device_mib", ",.0f"),
    }
    limits = {
        "technique": list(summary.index),
        "first step (s)": column("first_step_s", ".1f"),
        "compiled": _compiled(summary),
        "has paid after": [break_even_text(line) for line in lines],
        "products in": _words(summary.precision),
        "TFLOP/s": column("tflops", ",.3g"),
        "of the measured ceiling": column("ceiling_share", ".0%"),
        "MFU (of the datasheet)": column("mfu", ".0%"),
        "modelled floor (ms)": column("floor_ms", ",.1f"),
        "still to be had": [f"{x}x" if x else "" for x in column("floor_speedup", ".1f")],
    }
    cost = {
        "technique": list(summary.index),
        "hours for 10^9 tokens": column("hours_per_billion", ",.1f"),
        "mean power (W)": column("mean_power_w", ",.0f"),
        "kWh for 10^9 tokens": column("kwh_per_billion", ",.2f"),
        "J for 10^6 tokens": column("joules_per_million", ",.0f"),
    }
    if price is not None:
        title = f"cost of 10^9 tokens at {price:,.2f} an hour"
        cost[title] = column("hours_per_billion", ",.2f", price)
    return speed, memory, limits, cost


def _section(title, columns, kept, folded=False, needed="technique"):
    """Title and table of the techniques to be kept; nothing where `needed` is not known."""
    columns = _only(columns, kept)
    if not any(columns[needed]):
        return []
    if folded:
        opening = f"<details>\n<summary>{title}</summary>"
        return [opening, _markdown(columns), "</details>"]
    return [f"{title}:", _markdown(columns)]


def _only(columns, kept):
    return {
        name: [text for text, keep in zip(texts, kept, strict=True) if keep]
        for name, texts in columns.items()
    }


def _markdown(columns):
    """Columns of texts as a table, without those that have no text at all, notes aside."""
    shown = {name: texts for name, texts in columns.items() if any(texts) or name == "note"}
    words = ("technique", "status", "note", "what it computes", "quality", "compiled")
    align = ["left" if name in words else "right" for name in shown]
    return pd.DataFrame(shown).to_markdown(index=False, disable_numparse=True, colalign=align)


def _caption(rows, summary):
    """What the rows have in common, and what the brackets mean."""
    if summary.speedup_low.isna().all():
        return f"{describe(rows)}; {NO_INTERVAL}."
    seeds = rows[rows.technique == BASELINE].groupby("round").loss.apply(_last)
    return (
        f"{describe(rows)}; in brackets the 95% interval over rounds. From seed to seed the "
        f"baseline's loss varies by {seeds.std():.3f} (standard deviation), so it is the paired "
        "difference that says what a technique does to it."
    )


def over_parents(summary):
    """What the intervals over the parents say, as one paragraph of a list: which techniques are
    faster, which slower, of which neither can be said; [] where there are none."""
    said = []
    for verdict in ("faster", "slower", "no detectable difference"):
        ratios = summary.parent_speedup[summary.parent_verdict == verdict]
        texts = list(ratios.index)
        if verdict != "no detectable difference":
            ratios = ratios.sort_values(ascending=verdict == "slower")
            texts = [f"{name} {ratio:.2f}x" for name, ratio in ratios.items()]
        if texts:
            said.append(f"{verdict}: {', '.join(texts)}")
    return [f"Against their parents: {'; '.join(said)}."] if said else []


def _compiled(summary):
    """ "1 graph, cold cache; 2 recompilations" for each technique that compiles."""
    texts = []
    for graphs, again, cache in zip(
        summary.graphs, summary.recompilations, summary.compile_cache, strict=True
    ):
        if pd.isna(graphs):
            texts.append("")
            continue
        text = f"{graphs:.0f} graph{'s' * (graphs != 1)}" + (f", {cache} cache" if cache else "")
        texts.append(text + (f"; {again:.0f} recompiled" if again else ""))
    return texts


def _words(column):
    return ["" if pd.isna(word) else word.replace("|", "\\|") for word in column]


def hourly_price(text):
    """A number from 0 up, or None for no text."""
    try:
        price = float(text or "nan")
    except ValueError:
        price = -1.0
    if price < 0 or np.isinf(price):
        raise argparse.ArgumentTypeError(f"{text!r} is not a price")
    return None if np.isnan(price) else price


def main(argv=None):
    """Prints the table of a results file, or writes it into a page between two marks."""
    parser = settings.Parser("table", main.__doc__)
    settings.add_selection(parser)
    help = "of an hour of this device; adds what a billion tokens cost"
    parser.add_argument("--price", type=hourly_price, help=help)
    parser.add_argument("--into", type=Path, help="page with the marks <!-- table --> around it")
    args = parser.parse_args(argv)
    rows, left_out = select(results.read(args.results_file), args.device_name)
    records = results.records(args.results_file, rows.run_id.unique())
    text = table(rows, left_out, records, args.price, folded=args.into is not None)
    if args.into is None:
        print(text)
        return
    try:
        parts = args.into.read_text().split(MARK)
        if len(parts) != 3:
            raise UserError(f"{args.into}: has no two marks {MARK}")
        args.into.write_text(f"{parts[0]}{MARK}\n{text}\n{MARK}{parts[2]}")
    except OSError as error:
        raise UserError(f"{args.into}: {error.strerror}") from None


if __name__ == "__main__":
    with one_line("table"):
        main()
