"""Rows of ratios: a point or a bar with its interval, its value, and words beside it."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis.intervals import NO_INTERVAL, numbers
from Utils.draw.chart_style import POINTS, beside

FINE_TICKS = (0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)
COARSE_TICKS = (0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 100, 1000)
FINE = 8  # an axis whose end is at most so many times its start has fine ticks


@dataclass(frozen=True)
class Column:
    """Words right of the rows: place as a fraction of the axes' width, alignment, heading."""

    x: float
    align: str
    heading: str

    @property
    def size(self):
        return "small" if self.align == "left" else None


def point(axes, y, ratio, colour, farthest=math.inf, line=None, text=None, **marker):
    """Draw a ratio as a point with its interval, and its value right of both.

    farthest: where the axis ends; an interval beyond it ends in an arrow. line: its colour.
    """
    end = interval(axes, y, ratio.low, ratio.high, line or colour, farthest)
    axes.plot(ratio.value, y, color=colour, zorder=4, **{"marker": "o", "ms": 7, **marker})
    value(axes, y, np.nanmax([ratio.value, end]), ratio.text, **(text or {}))


def interval(axes, y, low, high, colour="black", farthest=math.inf):
    """Draw an interval as a line. Return its right end; NaN without one."""
    if math.isnan(low):
        return low
    end = min(high, farthest)
    axes.plot([low, end], [y, y], color=colour, lw=1.8, zorder=3)
    if high > farthest:
        axes.plot(end, y, ">", color=colour, ms=6, zorder=3)
    return end


def value(axes, y, x, text, **look):
    """Write a value right of x."""
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # no grid through it
    axes.annotate(text, (x, y), (9, 0), va="center", zorder=2, **{"bbox": behind, **look}, **POINTS)


def words(axes, y, columns, texts):
    """Write texts right of a row, one a Column."""
    for column, text in zip(columns, texts, strict=True):
        beside(axes, column.x, y, text, ha=column.align, size=column.size)


def headings(axes, columns, y):
    for column in columns:
        beside(axes, column.x, y, column.heading, ha=column.align, va="bottom", size="small")


def ends(ratios):
    """Return the finite values and ends of intervals of Ratios, with the 1 of no change."""
    limits = numbers(pd.Series(list(ratios), dtype=object)).to_numpy().ravel()
    return np.array([1.0, *limits[np.isfinite(limits)]])


def spread(ratios, intervals="line: 95% interval over rounds"):
    """Return what the lines of a chart mean, or that it has none."""
    return intervals if any(ratio.interval for ratio in ratios) else NO_INTERVAL


def mark_one(axes):
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)


def logarithmic(axes, ratios, room):
    """Make an axis of ratios logarithmic and label it. room: right of them, of their own."""
    low = min(ends(ratios))
    high = max(ends(ratios))
    axes.set_xscale("log")
    axes.set_xlim(low / 1.06, 1.06 * high * (high / low) ** room)
    candidates = FINE_TICKS if high <= FINE * low else COARSE_TICKS
    left, right = axes.get_xlim()
    ticks = [x for x in candidates if left <= x <= right]
    axes.set_xticks(ticks, [f"{x:g}x" for x in ticks])
    axes.minorticks_off()
