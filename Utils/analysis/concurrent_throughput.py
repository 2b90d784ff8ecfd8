"""Tokens per second of several processes at once."""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, text_tables
from Utils.analysis.intervals import Ratio
from Utils.base.text import plural

VERDICTS = {intervals.INCONCLUSIVE: "inconclusive; measure more rounds with ROUNDS=4"}


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
    return Ratio.of_logs(intervals.mean(np.log(sums(several) / sums(alone))).estimate())


def report(technique, alone, several):
    """Return the results as a table and a sentence, a string."""
    record = several[0][0].record
    settings = record["settings"]
    titles = ("processes", "threads each", "tokens/s", "their sum", "peak memory (MiB)", "sum")
    cells = zip(_row(alone), _row(several), strict=True)
    columns = dict(zip(titles, cells, strict=True))
    ratio = compare(alone, several)
    lines = [
        f"{technique.name} on {record['device']['name']}, torch {record['versions']['torch']}: "
        f"{settings['model']}, {settings['batch_size']}x{settings['seq_len']} tokens a step, "
        f"{settings['dataset']}, {plural(len(several), 'round')}",
        "",
        text_tables.shown(columns),
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
        str(len(rounds[0])),
        str(record["threads"]),
        " + ".join(f"{rate:,.0f}" for rate in rates),
        f"{total:,.0f}",
        " + ".join(f"{peak:,.0f}" for peak in peaks),
        f"{peaks.sum():,.0f} ({share:.0%} of the device's)",
    )
