"""The sections of a page on speed, memory and loss."""

import numpy as np
import pandas as pd

from Utils.analysis import result_tables
from Utils.analysis.intervals import NO_INTERVAL, Ratio, numbers, verdicts
from Utils.base.text import number, short
from Utils.draw import chart_labels, svg

SAME = ("exact", "numerics changed")  # what trains the baseline's model
WORSE = ("diverged", "worse")
KINDS = {
    "weights_mib": "weights",
    "gradients_mib": "gradients",
    "optimizer_state_mib": "optimizer state",
    "rest_mib": "rest: activations, workspace",
}


def headline(lines):
    """Return the fastest technique that trains the baseline's model as well as the baseline does.

    It is a dict with its line, the baseline's and the speedup in words; or {"why"} there is none.
    Those with a verdict come first: of many single rounds the largest ratio is the luckiest.
    """
    base = lines.base.iloc[0]
    if base not in lines.index or np.isnan(lines.median_ms[base]):
        return {"why": "No baseline to compare with", "remedy": "make baseline"}
    same = lines.own_batch.isna() & lines.parity.isin(SAME)
    as_good = ~verdicts(lines.loss_difference).isin(WORSE)
    speedup = numbers(lines.speedup).value.where(lines.speedup.map(bool))
    fair = lines[same & as_good & (speedup > 1)]
    certain = fair[verdicts(fair.speedup) == "faster"]
    chosen = certain if len(certain) else fair[verdicts(fair.speedup) == NO_INTERVAL]
    if chosen.empty:
        return {"why": "No technique is significantly faster than the baseline", "remedy": ""}
    best, baseline = lines.loc[speedup[chosen.index].idxmax()], lines.loc[base]
    others = lines[(speedup > best.speedup.value) & ~lines.index.isin(certain.index)]
    return {
        "best": best,
        "baseline": baseline,
        "of": len(chosen),
        "speedup": best.speedup,
        "loss": best.loss_difference.with_verdict,
        "faster_still": [
            {"name": name, "speedup": line.speedup.text, "why": _unfair(line)}
            for name, line in others.iterrows()
        ],
    }


def _unfair(line):
    """Return why a technique that is faster is not in the headline."""
    if not np.isnan(line.own_batch):
        return "another batch size"
    if line.loss_difference.verdict in WORSE:
        return f"its loss: {line.loss_difference.verdict}"
    return line.speedup.verdict if line.parity in SAME else line.parity


def speed_bars(lines):
    """Return speedups over the baseline as `svg.bars`, a bar a technique."""
    rows = [
        {
            "name": chart_labels.label(line),
            "ratio": line.speedup,
            "verdict": line.speedup.verdict if name != line.base else "",
            "mark": lines.speedup.get(line.parent, Ratio()).value,
            "tainted": line.grade == "tainted",
            "reason": short(chart_labels.reason(line)),
        }
        for name, line in lines.iterrows()
    ]
    floor = lines.median_ms.get(lines.base.iloc[0], np.nan) / lines.floor_ms.min()
    return svg.bars(rows) | {"floor": number(floor, ".1f")}


def ladder_table(lines):
    """Return the rows of the main table, a list of dicts of texts."""
    notes = dict(zip(lines.index, result_tables.own_notes(lines), strict=True))
    return [
        {
            "name": name,
            "label": chart_labels.label(line),
            "parent": line.parent if isinstance(line.parent, str) else "",
            "missing": short(result_tables.reason(line)) if np.isnan(line.median_ms) else "",
            "note": "" if np.isnan(line.median_ms) else short(notes[name].replace("\\|", "|")),
            "cells": {
                "over baseline": line.speedup,
                "over parent": line.parent_speedup,
                "median step (ms)": {
                    "text": number(line.median_ms),
                    "interval": f"{number(line.p20_ms)}-{number(line.p80_ms)}",
                    "verdict": "",
                },
                f"{line.unit}/s": number(line.tokens_per_second, ",.0f"),
                "peak memory (MiB)": number(line.peak_memory_mib, ",.0f"),
                "loss": number(line.loss, ".3f"),
                "loss difference": line.loss_difference,
                "parity": "" if pd.isna(line.parity) else line.parity,
                "quality": "" if pd.isna(line.grade) else line.grade,
            },
        }
        for name, line in lines.iterrows()
    ]


def memory_bars(lines):
    """Return peak memory by kind as `svg.stacks`; {} where no run has a record of it."""
    unit, scale = ("GiB", 1024) if lines.peak_memory_mib.max() >= 4096 else ("MiB", 1)
    values, totals = {}, {}
    for _, line in lines.iterrows():
        kinds = {word: line[kind] / scale for kind, word in KINDS.items() if line[kind] >= 0}
        values[chart_labels.label(line)] = (
            kinds or short(chart_labels.reason(line)) or "not recorded by kind"
        )
        if kinds and np.isfinite(line.peak_memory_mib):
            totals[chart_labels.label(line)] = line.peak_memory_mib / scale
    return svg.stacks(values, unit, totals)
