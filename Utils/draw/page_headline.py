"""The beginning of a page: the fastest technique, and the main table."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from Utils.analysis import result_tables
from Utils.analysis.intervals import NO_INTERVAL, numbers, verdicts
from Utils.base.text import number, short
from Utils.draw import chart_labels

SAME = ("exact", "numerics changed")  # what trains the baseline's model
WORSE = ("diverged", "worse")


def headline(lines):
    """Return the fastest technique that trains the baseline's model as well as the baseline does.

    It is a dict with its line, the baseline's and the speedup; or {"why"} there is none. Those with
    a verdict come first: of many single rounds the largest ratio is the luckiest.
    """
    base = lines.base.iloc[0]
    if base not in lines.index or np.isnan(lines.step_ms[base]):
        return {"why": "No baseline to compare with", "remedy": "make baseline"}
    same = lines.own_batch.isna() & lines.parity.isin(SAME)
    as_good = ~verdicts(lines.loss_difference).isin(WORSE)
    speedup = numbers(lines.speedup).value.where(lines.speedup.map(bool))
    fair = lines[same & as_good & (speedup > 1)]
    certain = fair[verdicts(fair.speedup) == "faster"]
    chosen = certain if len(certain) else fair[verdicts(fair.speedup) == NO_INTERVAL]
    if chosen.empty:
        return {"why": "No technique is significantly faster than the baseline", "remedy": ""}
    best = lines.loc[speedup[chosen.index].idxmax()]
    faster = lines[(speedup > best.speedup.value) & ~lines.index.isin(certain.index)]
    return {
        "best": best,
        "baseline": lines.loc[base],
        "of": len(chosen),
        "speedup": best.speedup,
        "loss": best.loss_difference.with_verdict,
        "faster_still": [
            f"{name} {line.speedup.text} ({_unfair(line)})" for name, line in faster.iterrows()
        ],
    }


def _unfair(line):
    """Return why a technique that is faster is not in the headline."""
    if not np.isnan(line.own_batch):
        return "another batch size"
    if line.loss_difference.verdict in WORSE:
        return f"its loss: {line.loss_difference.verdict}"
    return line.speedup.verdict if line.parity in SAME else line.parity


def ladder_table(lines):
    """Return the rows of the main table, a list of dicts. A cell is a text, or has one with an
    interval and a verdict."""
    notes = dict(zip(lines.index, result_tables.own_notes(lines), strict=True))
    rows = []
    for name, line in lines.iterrows():
        row = {"name": name, "label": chart_labels.label(line), "missing": "", "note": ""}
        row["parent"] = line.parent if isinstance(line.parent, str) else ""
        if np.isnan(line.step_ms):
            row["missing"] = short(result_tables.reason(line))
        else:
            row["note"] = short(notes[name].replace("\\|", "|"))
        row["cells"] = {
            "over baseline": line.speedup,
            "over parent": line.parent_speedup,
            "step (ms)": SimpleNamespace(
                text=number(line.step_ms),
                interval=f"{number(line.p20_ms)}-{number(line.p80_ms)}",
                verdict="",
            ),
            f"{line.unit}/s": number(line.tokens_per_second, ",.0f"),
            "peak memory (MiB)": number(line.peak_memory_mib, ",.0f"),
            "loss": number(line.loss, ".3f"),
            "loss difference": line.loss_difference,
            "parity": "" if pd.isna(line.parity) else line.parity,
            "quality": "" if pd.isna(line.grade) else line.grade,
        }
        rows.append(row)
    return rows
