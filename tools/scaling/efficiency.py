"""Strong and weak scaling: the runs of a round, their efficiencies, and the table."""

import numpy as np
import pandas as pd

from Utils.analysis import intervals, result_tables, text_tables
from Utils.analysis.levels import fit


def _efficiency(line):
    """Return the speedup as a share of the ideal one, "85% (80% to 90%)"."""
    speedup = line.speedup
    low = speedup.low / line.ideal
    high = speedup.high / line.ideal
    interval = f" ({low:.0%} to {high:.0%})" if speedup.interval else ""
    return f"{speedup.value / line.ideal:.0%}{interval}"


COLUMNS = (  # as `result_tables.MAIN`
    ("scaling", "scaling", str),
    ("processes", "processes", "d"),
    ("global batch", "batch_size", "d"),
    ("step (ms)", "step_ms", ",.1f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("speedup in tokens/s", "speedup", lambda ratio: ratio.text_with_verdict),
    ("efficiency", None, _efficiency),
)


def batches_by_kind(counts: list[int], size: int) -> dict[str, dict[int, int]]:
    """Return the global batch by number of processes, for each kind of scaling."""
    share = size // min(counts)
    return {"strong": dict.fromkeys(counts, size), "weak": {n: n * share for n in counts}}


def efficiencies(rows: pd.DataFrame, counts: list[int], size: int) -> pd.DataFrame:
    """Return a line per kind of scaling and number of processes, from runs of all.

    speedup: Ratio of tokens per second over the fewest processes.
    ideal: the speedup by as many times the processes.
    """
    # Times of a sequence: those of a kind may have other batches.
    timed = rows[rows.phase == "timed"]
    keys = ["world_size", "batch_size", "round"]
    runs = timed.groupby(keys).step_ms.median().reset_index(name="step_ms")
    names = [*zip(runs.world_size, runs.batch_size, strict=True)]
    runs = runs.assign(
        script=[str(name) for name in names],
        group=runs["round"],
        log=np.log(runs.step_ms / runs.batch_size),
    )

    measured = {}
    for kind, batches in batches_by_kind(counts, size).items():
        measured[kind] = [line for line in batches.items() if line in names]
    pairs = {
        frozenset((str(lines[0]), str(line))) for lines in measured.values() for line in lines[1:]
    }
    levels = fit(runs, families=(pairs,))

    figures = []
    for kind, lines in measured.items():
        for n, B in lines:
            fewest = lines[0]
            step_ms = B * levels.step_ms(str((n, B)))
            figures.append(
                {
                    "scaling": kind,
                    "processes": n,
                    "batch_size": B,
                    "step_ms": step_ms,
                    "tokens_per_second": B * rows.seq_len.iloc[0] / step_ms * 1e3,
                    "speedup": levels.ratio(str(fewest), str((n, B))),
                    "ideal": n / fewest[0],
                }
            )
    return pd.DataFrame(figures)


def table(figures: pd.DataFrame, described: str) -> str:
    """Return the figures of `efficiencies` as a table with a caption. described: their rows."""
    caption = f"{described}."
    if any(ratio.interval for ratio in figures.speedup):
        caption += f" {intervals.MEANING}."
    return text_tables.page([result_tables.texts_of([*figures.itertuples()], COLUMNS), caption])
