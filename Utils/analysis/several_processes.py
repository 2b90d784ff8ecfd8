"""Rates of several processes: strong and weak scaling over devices, and several at once on one."""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.base.errors import UserError
from Utils.base.text import plural

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
    ("speedup in tokens/s", "speedup", lambda ratio: ratio.with_verdict),
    ("efficiency", "efficiency", _percent),
)


def shapes(counts, size):
    """Return the runs of a round as (processes, global batch), both kinds, each run once."""
    each = size // min(counts)
    return list(dict.fromkeys([*((n, size) for n in counts), *((n, n * each) for n in counts)]))


def efficiencies(rows, counts, size):
    """Return a DataFrame with one line per kind of scaling and number of processes, with timings of
    the runs of `shapes`. speedup: Ratio of tokens per second over the fewest processes, corrected
    by Holm over all; efficiency: its share of the ideal.
    """
    timed = rows[rows.phase == "timed"]
    by_round = timed.groupby(["world_size", "batch_size", "round"]).step_ms.median()
    lines = []
    for kind in KINDS:
        batches = {n: size if kind == "strong" else n * (size // min(counts)) for n in counts}
        measured = [(n, B) for n, B in batches.items() if (n, B) in by_round]
        for n, B in measured:
            fewest, fewest_B = measured[0]
            as_many_tokens = by_round[fewest, fewest_B] * (B / fewest_B)
            speedup = intervals.speedup(as_many_tokens, by_round[n, B])
            speedup = speedup if n > fewest else intervals.Ratio(1.0)
            step_ms = intervals.typical(by_round[n, B])
            line = {"scaling": kind, "processes": n, "batch_size": B, "step_ms": step_ms}
            line["tokens_per_second"] = B * rows.seq_len.iloc[0] / step_ms * 1e3
            lines.append(line | {"speedup": speedup, "efficiency": speedup.times(fewest / n)})
    lines = pd.DataFrame(lines)
    return lines.assign(speedup=intervals.holm(lines.speedup))


def scaling_table(lines, described):
    """Return the lines of `efficiencies` as a table with a caption. described: its rows."""
    caption = f"{described}."
    if any(ratio.interval for ratio in lines.speedup):
        caption += f" In brackets the 95% interval over rounds; {intervals.CORRECTED}."
    return text_tables.page([result_tables.texts_of(lines, COLUMNS), caption])


def tokens_per_second(parts):
    """Return the rate of each Part over the time in which all of them train, an array. A step that
    an end of this time cuts counts by its share. Raises UserError where there is no such time.
    """
    times = [part.began + np.cumsum([0.0, *part.step_s]) for part in parts]
    span = np.array([max(t[0] for t in times), min(t[-1] for t in times)])
    if span[0] >= span[1]:
        raise UserError("one process had ended before another began", "set more STEPS")
    steps = [np.diff(np.interp(span, t, np.arange(len(t)))).item() for t in times]
    return np.array([part.tokens for part in parts]) * steps / np.diff(span)


def compare(alone, several):
    """Return the Ratio of the summed tokens per second over rounds."""
    return intervals.ratio_of(np.log(_rates(several).sum(axis=1) / _rates(alone).sum(axis=1)))


def _rates(rounds):
    """Return the tokens per second of each process, a DataFrame with a row a round."""
    return pd.DataFrame([tokens_per_second(parts) for parts in rounds])


def report(technique, alone, several):
    """Return the rates of one process and of several at once, Parts by round, as a table."""
    record = several[0][0].record
    settings, device = record["settings"], record["device"]
    lines = []
    for rounds in (alone, several):
        # The rates are the shares of the processes in the mean of their sums, which divides to the
        # ratio.
        rates = _rates(rounds)
        total = intervals.typical(rates.sum(axis=1))
        shares = rates.sum() / rates.to_numpy().sum()
        peaks = np.median([[part.peak_mib for part in parts] for parts in rounds], axis=0)
        line = {
            "processes": str(len(peaks)),
            "threads each": str(rounds[0][0].record["threads"]),
            "tokens/s": " + ".join(f"{rate:,.0f}" for rate in total * shares),
            "their sum": f"{total:,.0f}",
            "peak memory (MiB)": " + ".join(f"{peak:,.0f}" for peak in peaks),
            "sum": f"{peaks.sum():,.0f} ({peaks.sum() / device['memory_mib']:.0%} of the device's)",
        }
        lines.append(line)
    ratio = compare(alone, several)
    more = "; measure more rounds with ROUNDS=4" if ratio.verdict == intervals.INCONCLUSIVE else ""
    reached = f"{len(several[0])} processes reach {ratio} the tokens per second of one"
    sentences = [f"{reached}: {ratio.verdict}{more}."]
    for r, (part,) in enumerate(alone, 1):
        if reasons := part.record["quality"]["reasons"]:
            why = " and ".join(reasons)
            sentences.append(f"The single process was tainted in round {r} of {len(alone)}: {why}.")
    described = (
        f"{technique.name} on {device['name']}, torch {record['versions']['torch']}: "
        f"{settings['model']}, {settings['batch_size']}x{settings['seq_len']} tokens a step, "
        f"{settings['dataset']}, {plural(len(several), 'round')}"
    )
    table = pd.DataFrame(lines).to_dict("list")
    return text_tables.page([described, table, "\n".join(sentences)])
