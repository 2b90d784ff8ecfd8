"""Tokens per second of several processes at once."""

import numpy as np
import pandas as pd
from tabulate import tabulate

from Utils.analysis import intervals
from Utils.analysis.intervals import NO_INTERVAL

VERDICTS = {
    "faster": "it pays",
    "slower": "it costs",
    "no detectable difference": "whether it pays cannot be told",
    NO_INTERVAL: "one round cannot tell whether it pays; ROUNDS=3 may",
}


def tokens_per_second(parts):
    """Of each Part, in the time in which all of them train: an array. Of a step that the end of
    this time cuts, the share before it counts."""
    boundaries = [part.began + np.cumsum([0.0, *part.step_s]) for part in parts]
    span = np.array([max(own[0] for own in boundaries), min(own[-1] for own in boundaries)])
    steps = [np.diff(np.interp(span, own, np.arange(len(own)))).item() for own in boundaries]
    return np.array([part.tokens for part in parts]) * steps / np.diff(span)


def compare(alone, several):
    """How many times as many tokens a second: speedup, its interval and a verdict, as
    `summary.as_ratio` has them, of the rounds' log ratios."""
    rates = [[tokens_per_second(parts).sum() for parts in rounds] for rounds in (several, alone)]
    return intervals.as_ratio(*intervals.interval(pd.Series(np.log(rates[0]) - np.log(rates[1]))))


def report(technique, alone, several):
    """What was found, in a table and a sentence: a string."""
    record, n, rounds = several[0][0].record, len(several[0]), len(several)
    device, shape = record["device"], record["settings"]
    rows = []
    for count, found in ((1, alone), (n, several)):
        rates = np.median([tokens_per_second(parts) for parts in found], axis=0)
        peaks = np.median([[part.peak_mib for part in parts] for parts in found], axis=0)
        each = [" + ".join(f"{x:,.0f}" for x in values) for values in (rates, peaks)]
        share = f" ({peaks.sum() / device['memory_mib']:.0%} of the device's)"
        sums = f"{rates.sum():,.0f}", f"{peaks.sum():,.0f}{share}"
        rows.append((count, found[0][0].record["threads"], each[0], sums[0], each[1], sums[1]))
    headers = ("at once", "threads each", "tokens/s", "in sum", "peak memory (MiB)", "in sum")
    align = ("right",) * len(headers)
    ratio = compare(alone, several)
    interval = f" ({ratio['speedup_low']:.2f}-{ratio['speedup_high']:.2f})" if rounds > 1 else ""
    lines = [
        f"{technique.name} on {device['name']}, torch {record['versions']['torch']}: "
        f"{shape['model']}, {shape['batch_size']}x{shape['seq_len']} tokens a step, "
        f"{shape['dataset']}, {rounds} round{'s' * (rounds > 1)}",
        "",
        tabulate(rows, headers, "github", colalign=align, disable_numparse=True),
        "",
        f"{n} at once train {ratio['speedup']:.2f}x{interval} as many tokens a second as one "
        f"alone: {VERDICTS[ratio['verdict']]}.",
    ]
    for r, (part,) in enumerate(alone):
        if part.record["quality"]["reasons"]:
            why = " and ".join(part.record["quality"]["reasons"])
            lines.append(f"One alone was tainted in its round {r + 1} of {rounds}: {why}.")
    return "\n".join(lines)
