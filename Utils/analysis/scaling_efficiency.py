"""Efficiency of strong and weak scaling."""

from dataclasses import astuple, dataclass
from typing import ClassVar

import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.base.text import plural

KINDS = {"strong": "the same global batch", "weak": "the same batch for each process"}

COLUMNS = (  # as `result_tables.SPEED`
    ("scaling", "scaling", str),
    ("processes", "processes", "d"),
    ("global batch", "batch_size", "d"),
    ("step (ms)", "step_ms", ",.1f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("speedup in tokens/s", "speedup", str),
    ("efficiency", "efficiency", str),
)


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
    timed = rows[rows.phase == "timed"]
    size = min(size for _, size in plan)
    by_round = timed.groupby(["world_size", "batch_size", "round"]).step_ms.median()
    lines = []
    for kind in KINDS:
        reference = None
        for n in counts:
            B = size if kind == "strong" else n * (size // min(counts))
            if (n, B) not in by_round:
                continue
            reference = reference or (n, B)
            fewest, fewest_B = reference
            as_many_tokens = by_round[reference] * (B / fewest_B)
            speedup = intervals.speedup(as_many_tokens, by_round[n, B])
            step_ms = intervals.typical(by_round[n, B])
            line = {
                "scaling": kind,
                "processes": n,
                "batch_size": B,
                "step_ms": step_ms,
                "tokens_per_second": B * rows.seq_len.iloc[0] / step_ms * 1e3,
                "speedup": speedup,
                "efficiency": Share(*astuple(speedup)).times(fewest / n),
            }
            lines.append(line)
    return pd.DataFrame(lines)


def table(lines):
    """Return the lines of `efficiencies` as a GitHub-markdown table."""
    return text_tables.shown(result_tables.texts_of(lines, COLUMNS), ("scaling",))


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
    first = rows.iloc[0]
    return (
        f"{first.technique} on {first.device}, torch {first.torch}, {first.model}, sequences of "
        f"{first.seq_len} tokens, {first.dataset}, {plural(rows['round'].nunique(), 'round')}, "
        f"commit {first.commit or 'unknown'}"
    )
