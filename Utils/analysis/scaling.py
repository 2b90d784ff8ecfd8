"""Efficiency of strong and weak scaling."""

import math

import pandas as pd

from Utils.analysis import intervals, tables
from Utils.analysis.intervals import NO_INTERVAL

KINDS = {"strong": "the same batch for all together", "weak": "the same batch for each"}


def shapes(counts, size):
    """The runs of a round, as (processes, global batch): both kinds, each of them once."""
    each = size // min(counts)
    return list(dict.fromkeys([*((n, size) for n in counts), *((n, n * each) for n in counts)]))


def efficiencies(rows, plan, counts):
    """One line a kind of scaling and number of processes, a DataFrame: scaling, processes,
    batch_size, median_ms, tokens_per_second; speedup, speedup_low and speedup_high in tokens per
    second over the fewest processes, efficiency, efficiency_low and efficiency_high as shares of
    the ideal. NaN where there is no interval.

    rows: of the runs in `plan`, of `shapes`, that have timings.
    """
    timed, size = rows[rows.phase == "timed"], min(size for _, size in plan)
    medians = timed.groupby(["world_size", "batch_size", "round"]).step_ms.median()
    lines = []
    for kind in KINDS:
        reference = None
        for n in counts:
            B = size if kind == "strong" else n * (size // min(counts))
            if (n, B) not in medians:
                continue
            own = medians[n, B]
            own_ms = timed[(timed.world_size == n) & (timed.batch_size == B)].step_ms.median()
            line = {"scaling": kind, "processes": n, "batch_size": B, "median_ms": own_ms}
            line["tokens_per_second"] = B * rows.seq_len.iloc[0] / own_ms * 1e3
            reference = (n, B, own) if reference is None else reference
            fewest, fewest_B, fewest_ms = reference
            more = B / fewest_B  # tokens
            ratio = intervals.speedup(fewest_ms, own)
            for part in ("", "_low", "_high"):
                value = ratio.get(f"speedup{part}", math.nan) * more
                line[f"speedup{part}"] = value
                line[f"efficiency{part}"] = value * fewest / n
            lines.append(line)
    return pd.DataFrame(lines)


def table(found):
    """The lines of `efficiencies` as GitHub-markdown."""
    shown = {
        "scaling": found.scaling,
        "processes": found.processes,
        "global batch": found.batch_size,
        "median step (ms)": found.median_ms.map("{:,.1f}".format),
        "tokens/s": found.tokens_per_second.map("{:,.0f}".format),
        "speedup in tokens/s": [_ratio(line, "speedup", "{:.2f}x") for line in found.itertuples()],
        "efficiency": [_ratio(line, "efficiency", "{:.0%}") for line in found.itertuples()],
    }
    return tables.markdown(shown, left=("scaling",))


def _ratio(line, name, form):
    value, low, high = (getattr(line, f"{name}{part}") for part in ("", "_low", "_high"))
    no_interval = math.isnan(low) or low == high  # which is the reference itself
    interval = "" if no_interval else f" ({form.format(low)} to {form.format(high)})"
    return form.format(value) + interval


def sentence(found):
    """What the most processes bring, of either kind, and whether that can be told from nothing."""
    lines = []
    for kind, what in KINDS.items():
        own = found[found.scaling == kind]
        if len(own) < 2:
            continue
        first, last = own.iloc[0], own.iloc[-1]
        text = (
            f"{kind} scaling, {what}: {last.processes} processes do {last.speedup:.2f} times the "
        )
        text += f"tokens per second of {first.processes}, {last.efficiency:.0%} of the ideal"
        if math.isnan(last.speedup_low):
            lines.append(f"{text}; {NO_INTERVAL}.")
        else:
            verdict = "no faster, as far as this shows"
            if last.speedup_low > 1:
                verdict = "faster"
            elif last.speedup_high < 1:
                verdict = "slower"
            low, high = last.efficiency_low, last.efficiency_high
            lines.append(f"{text} ({low:.0%} to {high:.0%}): {verdict}.")
    return "\n".join(lines)


def described(rows):
    """What the runs have in common, in one line."""
    first, rounds = rows.iloc[0], rows["round"].nunique()
    return (
        f"{first.technique} on {first.device}, torch {first.torch}, {first.model}, sequences of "
        f"{first.seq_len} tokens, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit "
        f"{first.commit or 'unknown'}"
    )
