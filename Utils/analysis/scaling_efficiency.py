"""Efficiency of strong and weak scaling."""

from dataclasses import astuple, dataclass
from typing import ClassVar

import pandas as pd

from Utils.analysis import intervals, result_tables

KINDS = {"strong": "the same global batch", "weak": "the same batch for each process"}


@dataclass(frozen=True)
class Share(intervals.Ratio):
    """A ratio in percent, "85% (80% to 90%)"."""

    form: ClassVar = ".0%"
    unit: ClassVar = ""
    separator: ClassVar = " to "


def shapes(counts, size):
    """Return the runs of a round as (processes, global batch), both kinds, each run once."""
    each = size // min(counts)
    return list(dict.fromkeys([*((n, size) for n in counts), *((n, n * each) for n in counts)]))


def efficiencies(rows, plan, counts):
    """Return a DataFrame with one line per kind of scaling and number of processes: scaling,
    processes, batch_size, step_ms, tokens_per_second; speedup, a Ratio of tokens per second over
    the fewest processes; efficiency, the Share of the ideal.

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
            ms = intervals.typical_ms(by_round)
            line = {"scaling": kind, "processes": n, "batch_size": B, "step_ms": ms}
            line["tokens_per_second"] = B * rows.seq_len.iloc[0] / ms * 1e3
            reference = reference or (n, B, by_round)
            fewest, fewest_B, fewest_ms = reference
            speedup = intervals.speedup(fewest_ms, by_round).times(B / fewest_B)  # of tokens
            line["speedup"] = speedup
            line["efficiency"] = Share(*astuple(speedup)).times(fewest / n)
            lines.append(line)
    return pd.DataFrame(lines)


def table(lines):
    """Return the lines of `efficiencies` as a GitHub-markdown table."""
    shown = {
        "scaling": lines.scaling,
        "processes": lines.processes,
        "global batch": lines.batch_size,
        "step (ms)": lines.step_ms.map("{:,.1f}".format),
        "tokens/s": lines.tokens_per_second.map("{:,.0f}".format),
        "speedup in tokens/s": [*map(str, lines.speedup)],
        "efficiency": [*map(str, lines.efficiency)],
    }
    return result_tables.markdown(shown, left=("scaling",))


def sentence(lines):
    """Return the speedup, efficiency and verdict of the most processes, a sentence per kind."""
    sentences = []
    for kind, batch in KINDS.items():
        of_kind = lines[lines.scaling == kind]
        if len(of_kind) < 2:
            continue
        first, last = of_kind.iloc[0], of_kind.iloc[-1]
        text = (
            f"{kind} scaling, {batch}: {last.processes} processes reach {last.speedup.text} the "
            f"tokens per second of {first.processes}, {last.efficiency.text} of the ideal"
        )
        text += f" ({last.efficiency.interval}): " if last.efficiency.interval else "; "
        sentences.append(f"{text}{last.speedup.verdict}.")
    return "\n".join(sentences)


def described(rows):
    """Return the common facts of the runs in one line."""
    first, rounds = rows.iloc[0], rows["round"].nunique()
    return (
        f"{first.technique} on {first.device}, torch {first.torch}, {first.model}, sequences of "
        f"{first.seq_len} tokens, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit "
        f"{first.commit or 'unknown'}"
    )
