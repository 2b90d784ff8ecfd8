"""Tokens per second of several processes at once."""

import numpy as np
import pandas as pd
from tabulate import tabulate

from Utils.analysis import intervals
from Utils.base.text import plural

VERDICTS = {
    "no detectable difference": "inconclusive",
    intervals.NO_INTERVAL: "one round is inconclusive; measure more with ROUNDS=3",
}


def tokens_per_second(parts):
    """Return the rate of each Part over the time in which all of them train, an array. A step that
    an end of this time cuts counts by its share."""
    times = [part.began + np.cumsum([0.0, *part.step_s]) for part in parts]
    span = np.array([max(t[0] for t in times), min(t[-1] for t in times)])
    steps = [np.diff(np.interp(span, t, np.arange(len(t)))).item() for t in times]
    return np.array([part.tokens for part in parts]) * steps / np.diff(span)


def compare(alone, several):
    """Return the Ratio of the summed tokens per second over rounds."""
    rates = [[tokens_per_second(parts).sum() for parts in rounds] for rounds in (several, alone)]
    logs = pd.Series(np.log(rates[0]) - np.log(rates[1]))
    return intervals.Ratio.of_logs(intervals.interval(logs))


def report(technique, alone, several):
    """Return the results as a table and a sentence, a string."""
    record, n, rounds = several[0][0].record, len(several[0]), len(several)
    device, shape = record["device"], record["settings"]
    rows = []
    for count, runs in ((1, alone), (n, several)):
        rates = np.median([tokens_per_second(parts) for parts in runs], axis=0)
        peaks = np.median([[part.peak_mib for part in parts] for parts in runs], axis=0)
        each = [" + ".join(f"{x:,.0f}" for x in values) for values in (rates, peaks)]
        share = f" ({peaks.sum() / device['memory_mib']:.0%} of the device's)"
        sums = f"{rates.sum():,.0f}", f"{peaks.sum():,.0f}{share}"
        rows.append((count, runs[0][0].record["threads"], each[0], sums[0], each[1], sums[1]))
    headers = ("processes", "threads each", "tokens/s", "sum", "peak memory (MiB)", "sum")
    align = ("right",) * len(headers)
    ratio = compare(alone, several)
    lines = [
        f"{technique.name} on {device['name']}, torch {record['versions']['torch']}: "
        f"{shape['model']}, {shape['batch_size']}x{shape['seq_len']} tokens a step, "
        f"{shape['dataset']}, {plural(rounds, 'round')}",
        "",
        tabulate(rows, headers, "github", colalign=align, disable_numparse=True),
        "",
        f"{n} processes reach {ratio} the tokens per second of one: "
        f"{VERDICTS.get(ratio.verdict, ratio.verdict)}.",
    ]
    for r, (part,) in enumerate(alone):
        if part.record["quality"]["reasons"]:
            why = " and ".join(part.record["quality"]["reasons"])
            lines.append(f"The single process was tainted in round {r + 1} of {rounds}: {why}.")
    return "\n".join(lines)
