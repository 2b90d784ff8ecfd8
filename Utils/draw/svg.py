"""Coordinates of bars, lines and dots, in percent of the available width.

The templates in pages/ turn them into SVG: bars with intervals, stacked bars, lines with bands, a
heatmap, dots. They are plain values and texts, which the templates escape. Values that are not
finite are left out.
"""

import json
import string

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex

from Utils.analysis import intervals, round_levels
from Utils.base.text import number, short
from Utils.draw import chart_labels
from Utils.results import selection

POINTS = 120  # of a line, and cells of a row of the heatmap, at most; else steps are put together
LEVELS = 9  # of the heatmap's colours
HEAT = [to_hex(colour) for colour in colormaps["viridis"].resampled(LEVELS).colors]
FARTHEST = 1.5  # times the longest bar that an interval may stretch the axis
MARKS = {"faster": "▲", "slower": "▼", "no detectable difference": "="}


def percent(value, most):
    """Return a value as percent of `most`, from 0 to 100."""
    share = 100 * value / most if most else 0
    return round(float(np.clip(share, 0, 100)), 2) if np.isfinite(share) else 0


def ticks(most, unit=""):
    """Return about five round values from 0 to `most`: a list of {"x": percent, "text"}."""
    if not (np.isfinite(most) and most > 0):
        return []
    rough = most / 5
    power = 10 ** np.floor(np.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    values = np.arange(0, most * 1.001, step)
    return [{"x": percent(v, most), "text": f"{v:,g}{unit}"} for v in values]


def bars(rows):
    """Return ratios as bars from 0, in percent of the axis: {"rows", "one", "ticks"}.

    rows: dicts of name, ratio (a Ratio), mark (another value to show, or NaN), verdict, tainted,
    reason (why there is no ratio, or "").
    """
    ratios = intervals.numbers(pd.Series([row["ratio"] for row in rows]))
    ratios = ratios.replace([np.inf, -np.inf], np.nan)
    longest = np.nanmax([1.0, *ratios.value])
    highs = [*ratios.high.dropna()]
    most = max(longest, min(max(highs, default=0), FARTHEST * longest)) * 1.02
    for row in rows:
        ratio = row["ratio"]
        shown = {"value": ratio.value, "mark": row["mark"]}
        if ratio.interval:
            shown |= {"low": ratio.low, "high": ratio.high}
        row["at"] = {key: percent(value, most) for key, value in shown.items() if value == value}
        row["words"] = f"{MARKS.get(row['verdict'], '')} {row['verdict']}".strip()
        row["kind"] = {"faster": "good", "slower": "bad"}.get(row["verdict"], "plain")
    return {"rows": rows, "one": percent(1, most), "ticks": ticks(most, "x")}


def stacks(values, unit, totals=None):
    """Return stacked bars: {"kinds": [(letter, name)], "rows", "ticks", "unit"}; {} without values.

    values: {technique: {kind: number}}, or a text in place of the dict where there are none.
    totals: the number behind each bar, by technique; else the sum.
    """
    known = {name: kinds for name, kinds in values.items() if isinstance(kinds, dict)}
    order = list(dict.fromkeys(kind for kinds in known.values() for kind in kinds))
    if not order:
        return {}
    sums = {name: sum(kinds.values()) for name, kinds in known.items()}
    totals = sums | (totals or {})
    most = max([*sums.values(), *totals.values()]) * 1.02
    looks = {
        kind: {"name": kind, "letter": string.ascii_uppercase[place % 26], "colour": place % 10}
        for place, kind in enumerate(order)
    }
    rows = []
    for name, kinds in values.items():
        if name not in known:
            rows.append({"name": name, "reason": kinds})
            continue
        segments, left = [], 0
        for kind, value in kinds.items():
            size = {"x": percent(left, most), "width": percent(value, most)}
            segments.append(looks[kind] | size | {"text": f"{kind}: {value:,.4g} {unit}"})
            left += value
        peak = {"at": percent(totals[name], most), "text": f"{totals[name]:,.4g}"}
        rows.append({"name": name, "segments": segments, "total": peak})
    return {"kinds": [*looks.values()], "rows": rows, "ticks": ticks(most), "unit": unit}


def step_times(rows, lines):
    """Return a panel and a heatmap row a technique, all of one scale; {} without a timing."""
    frame, size = round_levels.by_step(rows, POINTS)
    measured = selection.timed(rows).step_ms
    if frame.empty or measured.empty:
        return {}
    index = frame.index.get_level_values("step")
    first, last = index.min(), index.max() + size
    medians = lines.median_ms.dropna()
    scale = _scale(measured, medians.max() > 4 * medians.min() > 0)
    low, high = np.percentile(measured, [2, 98])
    heat = _scale(pd.Series([low, high]), high > 4 * low > 0, margin=1, bottom=low)

    def x(step):
        return percent(step - first, last - first)

    def y(ms):
        return round(100 - scale["at"](ms), 1)

    panels, strips = [], []
    for name, line in lines.iterrows():
        if name not in frame.index:
            strips.append(
                {"name": chart_labels.label(line), "reason": short(chart_labels.reason(line))}
            )
            continue
        own = frame.loc[name]
        at = [x(step + size / 2) for step in own.index]
        points = {k: [f"{10 * a:.1f},{y(b)}" for a, b in zip(at, own[k], strict=True)] for k in own}
        texts = [
            f"{_steps(step, size)}: {number(row['median'])} ms"
            for step, row in own.iterrows()  # the rounds' median
        ]
        panels.append(
            {
                "name": chart_labels.label(line, tainted=True),
                "median": number(line.median_ms),
                "first": number(line.first_step_s, ",.1f"),
                "line": " ".join(points["median"]),
                "band": " ".join([*points["max"], *points["min"][::-1]]),
                "texts": json.dumps(texts),
                "at": at,
            }
        )
        cells = [
            {
                "x": x(s),
                "width": x(s + size) - x(s),
                "text": text,
                "level": min(LEVELS - 1, int(heat["at"](ms) * LEVELS / 100)),
            }
            for s, text, ms in zip(own.index, texts, own["median"], strict=True)
        ]
        strips.append(
            {"name": chart_labels.label(line), "cells": cells, "median": number(line.median_ms)}
        )
    baseline = medians.get(lines.base.iloc[0], np.nan)
    return {
        "panels": panels,
        "strips": strips,
        "size": size,
        "steps": number(last - first, ",.0f"),
        "warmup": x(selection.warmup(rows)),
        "baseline": y(baseline) if baseline == baseline else None,
        "low": number(scale["low"], ",.3g"),
        "high": number(scale["high"], ",.4g"),
        "log": scale["log"],
        "coldest": number(low),
        "hottest": number(high),
    }


def _scale(values, log, margin=1.3, bottom=0.0):
    """Return a linear or logarithmic axis for values: {"low", "high", "log", "at"}, at(value) being
    its place from 0 to 100. A single hiccup does not stretch it."""
    high = float(values.quantile(0.99)) * margin or 1.0
    low = float(values.min()) / margin if log else float(bottom)
    form = np.log if log else np.asarray

    def at(value):
        with np.errstate(divide="ignore"):
            return percent(form(value) - form(low), form(high) - form(low))

    return {"low": low, "high": high, "log": log, "at": at}


def _steps(first, size):
    return f"step {first:,.0f}" if size == 1 else f"steps {first:,.0f} to {first + size - 1:,.0f}"


def dots(credits, ways):
    """Return `ablation.credits` as dots with intervals on a logarithmic axis, in percent of it."""
    values = pd.concat([intervals.numbers(credits[way]) for way in ways]).to_numpy()
    values = values[np.isfinite(values) & (values > 0)]
    low, high = min(0.9, values.min(initial=1)) / 1.05, max(1.1, values.max(initial=1)) * 1.05

    def at(value):
        return percent(np.log(value / low), np.log(high / low)) if value > 0 else 0

    rows = []
    for name, line in credits.iterrows():
        dots = []
        for way, title in ways.items():
            ratio = line[way]
            if not ratio:
                continue
            bounds = [at(ratio.low), at(ratio.high)] if ratio.interval else None
            dot = {"way": way, "title": title, "at": at(ratio.value), "ends": bounds}
            dot["text"] = ratio.with_verdict
            dots.append(dot)
        rows.append({"name": name, "dots": dots, "says": line.says})
    marks = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 8, 15, 30]
    return {
        "ways": ways,
        "rows": rows,
        "one": at(1),
        "ticks": [{"x": at(v), "text": f"{v:g}x"} for v in marks if low < v < high],
    }
