"""Tokens per second of several processes at once."""

import numpy as np
import pandas as pd
from tabulate import tabulate

from Utils.analysis import intervals
from Utils.analysis.intervals import Ratio
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


def sums(rounds):
    """Return the tokens per second of all processes, a Series by round."""
    return pd.Series([tokens_per_second(parts).sum() for parts in rounds])


def compare(alone, several):
    """Return the Ratio of the summed tokens per second over rounds."""
    return Ratio.of_logs(intervals.interval(np.log(sums(several) / sums(alone))))


def report(technique, alone, several):
    """Return the results as a table and a sentence, a string."""
    record = several[0][0].record
    settings = record["settings"]
    headers = ("processes", "threads each", "tokens/s", "sum", "peak memory (MiB)", "sum")
    ratio = compare(alone, several)
    lines = [
        f"{technique.name} on {record['device']['name']}, torch {record['versions']['torch']}: "
        f"{settings['model']}, {settings['batch_size']}x{settings['seq_len']} tokens a step, "
        f"{settings['dataset']}, {plural(len(several), 'round')}",
        "",
        tabulate(
            [_row(alone), _row(several)],
            headers,
            "github",
            colalign=("right",) * len(headers),
            disable_numparse=True,
        ),
        "",
        f"{len(several[0])} processes reach {ratio} the tokens per second of one: "
        f"{VERDICTS.get(ratio.verdict, ratio.verdict)}.",
    ]
    for r, (part,) in enumerate(alone):
        if part.record["quality"]["reasons"]:
            why = " and ".join(part.record["quality"]["reasons"])
            lines.append(f"The single process was tainted in round {r + 1} of {len(alone)}: {why}.")
    return "\n".join(lines)


def _row(rounds):
    """Return the cells of one number of processes. The rates are the shares of the processes in the
    geometric mean of their sums, of which `compare` is the quotient."""
    record = rounds[0][0].record
    total = np.exp(np.log(sums(rounds)).mean())
    rates = np.sum([tokens_per_second(parts) for parts in rounds], axis=0)
    rates *= total / rates.sum()
    peaks = np.median([[part.peak_mib for part in parts] for parts in rounds], axis=0)
    share = peaks.sum() / record["device"]["memory_mib"]
    return (
        len(rounds[0]),
        record["threads"],
        " + ".join(f"{rate:,.0f}" for rate in rates),
        f"{total:,.0f}",
        " + ".join(f"{peak:,.0f}" for peak in peaks),
        f"{peaks.sum():,.0f} ({share:.0%} of the device's)",
    )
