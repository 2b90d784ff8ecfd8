"""Rates of several processes at once on one device, compared with one alone."""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, text_tables
from Utils.base.errors import UserError
from Utils.base.text import plural


def tokens_per_second(parts: list) -> np.ndarray:
    """Return the rate of each process over the time in which all of them train.

    parts: an at_once.ProcessResult for each process.

    A step that an end of this time cuts counts by its share. Raises UserError if there is no such
    time.
    """
    ends_of_steps = [part.began + np.cumsum([0.0, *part.step_s]) for part in parts]
    began = max(times[0] for times in ends_of_steps)
    ended = min(times[-1] for times in ends_of_steps)
    if began >= ended:
        raise UserError("one process had ended before another began", "set more STEPS")

    steps_until = [np.interp([began, ended], t, np.arange(len(t))) for t in ends_of_steps]
    steps = np.diff(steps_until).squeeze(axis=1)
    return np.array([part.tokens for part in parts]) * steps / (ended - began)


def compare(alone: list[list], several: list[list]) -> intervals.Ratio:
    """Return the Ratio of the summed tokens per second. alone, several: ProcessResults by round."""
    return intervals.ratio_of(np.log(_rates(several).sum(axis=1) / _rates(alone).sum(axis=1)))


def _rates(rounds):
    """Return the tokens per second of each process, a DataFrame with a row a round."""
    return pd.DataFrame(map(tokens_per_second, rounds))


def report(technique, alone: list[list], several: list[list]) -> str:
    """Return the rates of one process of a Technique and of several at once as a table."""
    record = several[0][0].record
    settings = record["settings"]
    device = record["device"]
    described = (
        f"{technique.name} on {device['name']}, torch {record['versions']['torch']}: "
        f"{settings['model']}, {settings['batch_size']}x{settings['seq_len']} tokens a step, "
        f"{settings['dataset']}, {plural(len(several), 'round')}"
    )
    lines = [_line(rounds, device["memory_mib"]) for rounds in (alone, several)]

    ratio = compare(alone, several)
    reached = f"{len(several[0])} processes reach {ratio} the tokens per second of one"
    more = "; measure more rounds with ROUNDS=4" if ratio.verdict == intervals.INCONCLUSIVE else ""
    sentences = [f"{reached}: {ratio.verdict}{more}."]
    for number, (part,) in enumerate(alone, 1):
        reasons = " and ".join(part.record["quality"]["reasons"])
        if reasons:
            tainted = f"The single process was disturbed in round {number} of {len(alone)}"
            sentences.append(f"{tainted}: {reasons}.")
    return text_tables.page([described, pd.DataFrame(lines).to_dict("list"), "\n".join(sentences)])


def _line(rounds, memory_mib):
    """Return the line of a number of processes, texts by title. memory_mib: the device's.

    The rates are the shares of the processes in the mean of their sums, whose quotient is the
    ratio.
    """
    rates = _rates(rounds)
    total = intervals.typical(rates.sum(axis=1))
    shares = rates.sum() / rates.to_numpy().sum()
    peaks_mib = np.median([[part.peak_mib for part in parts] for parts in rounds], axis=0)
    return {
        "processes": str(len(peaks_mib)),
        "threads each": str(rounds[0][0].record["threads"]),
        "tokens/s": " + ".join(f"{rate:,.0f}" for rate in total * shares),
        "their sum": f"{total:,.0f}",
        "peak memory (MiB)": " + ".join(f"{peak:,.0f}" for peak in peaks_mib),
        "sum": f"{peaks_mib.sum():,.0f} ({peaks_mib.sum() / memory_mib:.0%} of the device's)",
    }
