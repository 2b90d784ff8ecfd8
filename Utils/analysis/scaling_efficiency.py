"""Efficiency of strong and weak scaling."""

import math

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables

KINDS = {"strong": "the same global batch", "weak": "the same batch for each process"}


def shapes(counts, size):
    """Return the runs of a round as (processes, global batch), both kinds, each run once."""
    each = size // min(counts)
    return list(dict.fromkeys([*((n, size) for n in counts), *((n, n * each) for n in counts)]))


def efficiencies(rows, plan, counts):
    """Return a DataFrame with one line per kind of scaling and number of processes: scaling,
    processes, batch_size, median_ms, tokens_per_second; speedup, speedup_low and speedup_high in
    tokens per second over the fewest processes; efficiency, efficiency_low and efficiency_high as
    shares of the ideal. Without an interval its ends are NaN.

    rows: those with timings of the runs in `plan`, from `shapes`.
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
            by_round = medians[n, B]
            ms = timed[(timed.world_size == n) & (timed.batch_size == B)].step_ms.median()
            line = {"scaling": kind, "processes": n, "batch_size": B, "median_ms": ms}
            line["tokens_per_second"] = B * rows.seq_len.iloc[0] / ms * 1e3
            reference = reference or (n, B, by_round)
            fewest, fewest_B, fewest_ms = reference
            ratio = intervals.speedup(fewest_ms, by_round)
            for part in ("", "_low", "_high"):
                value = ratio.get(f"speedup{part}", math.nan) * B / fewest_B  # tokens
                line[f"speedup{part}"] = value
                line[f"efficiency{part}"] = value * fewest / n
            lines.append(line)
    return pd.DataFrame(lines)


def table(lines):
    """Return the lines of `efficiencies` as a GitHub-markdown table."""
    shown = {
        "scaling": lines.scaling,
        "processes": lines.processes,
        "global batch": lines.batch_size,
        "median step (ms)": lines.median_ms.map("{:,.1f}".format),
        "tokens/s": lines.tokens_per_second.map("{:,.0f}".format),
        "speedup in tokens/s": [_ratio(line, "speedup", "{:.2f}x") for line in lines.itertuples()],
        "efficiency": [_ratio(line, "efficiency", "{:.0%}") for line in lines.itertuples()],
    }
    return result_tables.markdown(shown, left=("scaling",))


def _ratio(line, name, form):
    value, low, high = (getattr(line, f"{name}{part}") for part in ("", "_low", "_high"))
    no_interval = math.isnan(low) or low == high  # equal: the reference itself
    interval = "" if no_interval else f" ({form.format(low)} to {form.format(high)})"
    return form.format(value) + interval


def sentence(lines):
    """Return the speedup, efficiency and verdict of the most processes, a sentence per kind."""
    sentences = []
    for kind, batch in KINDS.items():
        of_kind = lines[lines.scaling == kind]
        if len(of_kind) < 2:
            continue
        first, last = of_kind.iloc[0], of_kind.iloc[-1]
        text = (
            f"{kind} scaling, {batch}: {last.processes} processes reach {last.speedup:.2f}x the "
            f"tokens per second of {first.processes}, {last.efficiency:.0%} of the ideal"
        )
        logs = np.log([last.speedup, last.speedup_low, last.speedup_high])
        verdict = intervals.as_ratio(*logs)["verdict"]
        interval = f" ({last.efficiency_low:.0%} to {last.efficiency_high:.0%}): "
        text += "; " if verdict == intervals.NO_INTERVAL else interval
        sentences.append(f"{text}{verdict}.")
    return "\n".join(sentences)


def described(rows):
    """Return the common facts of the runs in one line."""
    first, rounds = rows.iloc[0], rows["round"].nunique()
    return (
        f"{first.technique} on {first.device}, torch {first.torch}, {first.model}, sequences of "
        f"{first.seq_len} tokens, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit "
        f"{first.commit or 'unknown'}"
    )
