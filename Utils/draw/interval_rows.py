"""Forest plots: rows of ratios on a logarithmic axis, points with intervals, words beside them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis.intervals import NO_INTERVAL, Ratio, numbers
from Utils.draw import chart_style

FINE_TICKS = (0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 3, 4, 6, 8)
COARSE_TICKS = (0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 100, 1000)
NEAR, FAR = np.log([1.25, 3])  # beyond all values, an interval is always or never shown
FINE = 8  # an axis whose end is at most so many times its start has fine ticks
VERDICTS = {  # how a point looks
    Ratio.above: {"color": chart_style.BLUE, "marker": "o"},
    Ratio.below: {"color": chart_style.RED, "marker": "s"},
    Ratio.neither: {"color": chart_style.GREY, "marker": "o", "mfc": "white"},
}
NO_VERDICT = {"color": chart_style.GREY, "marker": "D"}

VALUE = {"va": "center", "size": "small", "color": "0.2", "zorder": 2, **chart_style.POINTS}
VALUE["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # no grid through it


@dataclass(frozen=True)
class Series:
    """Ratios, one a row, of which false ones are not drawn, and how they look. line: of the row."""

    label: str
    ratios: list
    look: dict
    line: int = 0


@dataclass(frozen=True)
class Column:
    """Words right of the rows. x: as a fraction of the axes' width. texts: one a row."""

    x: float
    heading: str
    texts: list


def by_verdict(ratios):
    """Return the Series of ratios by their verdicts."""
    series = []
    for verdict in dict.fromkeys([*VERDICTS, *(ratio.verdict for ratio in ratios)]):
        of_verdict = [ratio if ratio.verdict == verdict else Ratio() for ratio in ratios]
        series.append(Series(verdict, of_verdict, VERDICTS.get(verdict, NO_VERDICT)))
    return series


def forest(names, series, head, xlabel, columns=(), values=True, width=chart_style.WIDTH):
    """Return a figure of Series and its axes, a row a name.

    head: title, and lines below it. columns: Columns. values: written right of the points.
    """
    series = [each for each in series if any(each.ratios)]
    lines = 1 + max((each.line for each in series), default=0)
    row = 0.4 if lines == 1 else (lines + 1) * (0.21 if values else 0.13)
    room = 24 if columns else 0
    figure, axes = chart_style.figure(1.2 + row * len(names), *head, room=room, width=width)
    ratios = [ratio for each in series for ratio in each.ratios]
    low, high = limits(ratios)
    _logarithmic(axes, low, high, room=0.12 if values else 0)
    for each in series:
        offset = 0.8 * ((each.line + 0.5) / lines - 0.5)
        axes.plot([], [], ls="", label=each.label, **{"ms": 7, **each.look})
        for y, ratio in enumerate(each.ratios):
            if ratio:
                end = _point(axes, y + offset, ratio, each.look, low, high)
                if values:
                    axes.annotate(ratio.text, (end, y + offset), (9, 0), **VALUE)
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    for column in columns:
        chart_style.beside(axes, column.x, -0.7, column.heading, va="bottom", size="small")
        for y, text in enumerate(column.texts):
            chart_style.beside(axes, column.x, y, text, size="small")
    chart_style.name_rows(axes, names)
    meaning = "line: 95% interval" if any(ratio.interval for ratio in ratios) else NO_INTERVAL
    axes.set_xlabel(f"{xlabel}\n{meaning}")
    if series:
        below = {"bbox_to_anchor": (1, -0.02), "ncol": len(series), "fontsize": "small"}
        axes.legend(**chart_style.BESIDE | (below if columns else {}))
    if columns:
        figure.subplots_adjust(right=0.5)
        axes.tick_params(axis="y", labelsize="small")
    return figure, axes


def limits(ratios):
    """Return the ends of an axis of Ratios: 1 and all values are between them, and the intervals
    but the widest, which end in arrows."""
    logs = np.log(numbers(pd.Series(list(ratios), dtype=object)))
    return np.exp([-_reach(-logs.value, -logs.low), _reach(logs.value, logs.high)])


def _reach(values, ends):
    """Return how far an axis goes to one side of 1. values, ends: logarithms, positive there."""
    farthest = max(0, values.max())
    usual = ends.quantile(0.98, interpolation="lower")
    most = np.clip(usual, farthest + NEAR, farthest + FAR)
    return np.fmax(farthest, np.fmin(ends.max(), most))


def _point(axes, y, ratio, look, low, high):
    """Draw a ratio with its interval, which ends in an arrow where the axis ends before. Return
    where the right end is."""
    ends = np.clip([ratio.low, ratio.high], low, high)
    axes.plot(ends, [y, y], color=look["color"], lw=1.8, zorder=3)
    are_cut = ratio.low < low, ratio.high > high
    for end, is_cut, arrow in zip(ends, are_cut, "<>", strict=True):
        if is_cut:
            axes.plot(end, y, arrow, color=look["color"], ms=6, zorder=3)
    axes.plot(ratio.value, y, zorder=4, **{"ms": 7, **look})
    return np.nanmax([ratio.value, ends[1]])


def _logarithmic(axes, low, high, room):
    """Make an axis of ratios logarithmic and label it. room: right of them, of their own."""
    axes.set_xscale("log")
    axes.set_xlim(low / 1.06, 1.06 * high * (high / low) ** room)
    candidates = FINE_TICKS if high <= FINE * low else COARSE_TICKS
    left, right = axes.get_xlim()
    ticks = [x for x in candidates if left <= x <= right]
    axes.set_xticks(ticks, [f"{x:g}x" for x in ticks])
    axes.minorticks_off()
