"""Rates of several processes: strong and weak scaling over devices, and several at once on one."""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.base.errors import UserError
from Utils.base.text import plural
from Utils.scripts.ladder import Technique

KINDS = {"strong": "the same global batch", "weak": "the same batch for each process"}


def _percent(ratio):
    """Return a Ratio as text, "85% (80% to 90%)"."""
    interval = f" ({ratio.low:.0%} to {ratio.high:.0%})" if ratio.interval else ""
    return f"{ratio.value:.0%}{interval}"


COLUMNS = (  # as `result_tables.MAIN`
    ("scaling", "scaling", str),
    ("processes", "processes", "d"),
    ("global batch", "batch_size", "d"),
    ("step (ms)", "step_ms", ",.1f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("speedup in tokens/s", "speedup", lambda ratio: ratio.text_with_verdict),
    ("efficiency", "efficiency", _percent),
)


def shapes(counts: list[int], size: int) -> list[tuple[int, int]]:
    """Return the runs of a round as (processes, global batch), both kinds, each run once."""
    strong = _batches("strong", counts, size)
    weak = _batches("weak", counts, size)
    return list(dict.fromkeys([*strong.items(), *weak.items()]))


def _batches(kind, counts, size):
    """Return the global batch of a kind of scaling by number of processes."""
    if kind == "strong":
        return dict.fromkeys(counts, size)
    return {n: n * (size // min(counts)) for n in counts}


def efficiencies(rows: pd.DataFrame, counts: list[int], size: int) -> pd.DataFrame:
    """Return a line per kind of scaling and number of processes, from the runs of `shapes`.

    speedup: Ratio of tokens per second over the fewest processes, corrected by Holm over all.
    efficiency: its share of the ideal.
    """
    timed = rows[rows.phase == "timed"]
    by_round = timed.groupby(["world_size", "batch_size", "round"]).step_ms.median()
    lines = []
    for kind in KINDS:
        batches = _batches(kind, counts, size)
        measured = [(n, B) for n, B in batches.items() if (n, B) in by_round]
        for n, B in measured:
            fewest, fewest_B = measured[0]
            as_many_tokens = by_round[fewest, fewest_B] * (B / fewest_B)
            speedup = intervals.speedup(as_many_tokens, by_round[n, B])
            if n == fewest:
                speedup = intervals.Ratio(1.0)
            step_ms = intervals.typical(by_round[n, B])
            lines.append(
                {
                    "scaling": kind,
                    "processes": n,
                    "batch_size": B,
                    "step_ms": step_ms,
                    "tokens_per_second": B * rows.seq_len.iloc[0] / step_ms * 1e3,
                    "speedup": speedup,
                    "efficiency": speedup.times(fewest / n),
                }
            )
    lines = pd.DataFrame(lines)
    return lines.assign(speedup=intervals.holm(lines.speedup))


def scaling_table(lines: pd.DataFrame, described: str) -> str:
    """Return the lines of `efficiencies` as a table with a caption. described: their rows."""
    caption = f"{described}."
    if any(ratio.interval for ratio in lines.speedup):
        caption += f" In brackets the 95% interval over rounds; {intervals.CORRECTED}."
    return text_tables.page([result_tables.texts_of(lines, COLUMNS), caption])


def tokens_per_second(parts: list) -> np.ndarray:
    """Return the rate of each process over the time in which all of them train.

    parts: a turn_taking.ProcessResult for each process.

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
    """Return the Ratio of the summed tokens per second. alone, several: Parts by round."""
    return intervals.ratio_of(np.log(_rates(several).sum(axis=1) / _rates(alone).sum(axis=1)))


def _rates(rounds):
    """Return the tokens per second of each process, a DataFrame with a row a round."""
    return pd.DataFrame(map(tokens_per_second, rounds))


def report(technique: Technique, alone: list[list], several: list[list]) -> str:
    """Return the rates of one process and of several at once as a table; Parts by round."""
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
            tainted = f"The single process was tainted in round {number} of {len(alone)}"
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
