"""The chart of a comparison."""

import numpy as np

from Utils.analysis import comparison
from Utils.analysis.intervals import NO_INTERVAL, numbers
from Utils.base.text import brief
from Utils.draw import chart_style
from Utils.scripts import bases


def draw(a, b):
    """Draw the speedup of B over A (Sides), a point a technique with its interval, the verdict
    beside it, and what either side costs in memory and loss."""
    ratios = comparison.compare(a, b)
    title = "Speedup of B over A"
    figure, axes = chart_style.figure(2.3 + 0.5 * len(ratios), title, str(a), str(b))
    figure.subplots_adjust(right=0.66)  # the columns of words and numbers need room
    drawn = numbers(ratios)
    left = np.nanmin([1, *drawn.value, *drawn.low])
    # An interval from two rounds can be many times as wide as all the rest.
    most = np.nanmax([1, *drawn.value])
    right = min(3 * most, np.nanmax([most, *drawn.high]))
    width = max(right - left, 0.1)
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # no grid through words
    for y, (name, ratio) in enumerate(ratios.items()):
        if not ratio:
            how = {"ha": "left", "size": "small", "color": chart_style.GREY, "bbox": white}
            chart_style.beside(axes, 0.01, y, brief(comparison.why_not(a, b, name)), **how)
        else:
            colour = chart_style.colours().get(bases.last(name), chart_style.GREY)
            end = np.nanmax([ratio.value, min(ratio.high, right)])
            if not np.isnan(ratio.low):
                axes.plot([ratio.low, end], [y, y], color="black", lw=1.5, zorder=3)
                if ratio.high > right:
                    axes.plot(end, y, ">", color="black", ms=6, zorder=3)
            axes.plot(ratio.value, y, "o", color=colour, mec="black", ms=9, zorder=4)
            text, how = ratio.text, {"textcoords": "offset points", "bbox": white}
            axes.annotate(text, (end, y), (9, 0), va="center", weight="bold", **how)
            chart_style.beside(axes, 1.03, y, ratio.verdict, ha="left")
        for x, cell in ((1.66, comparison.memory_text), (2, comparison.loss_text)):
            cells = [side.cell(name, cell) or "-" for side in (a, b)]
            chart_style.beside(axes, x, y, " | ".join(cells))
    for x, heading, how in (
        (1.03, "verdict\non B", "left"),
        (1.66, "peak memory (MiB)\nA | B", "right"),
        (2, "loss (nats)\nA | B", "right"),
    ):
        chart_style.beside(axes, x, -0.5, heading, ha=how, va="bottom", size="small")
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    axes.set_xlim(max(0, left - 0.05 * width), right + 0.25 * width)
    intervals = drawn.low.notna().any()
    spread = "line: 95% interval over rounds (Welch's t)" if intervals else NO_INTERVAL
    axes.set_xlabel(f"tokens per second of B / of A (x)\n{spread}")
    chart_style.name_rows(axes, ratios.index, drawn.value.isna(), top=-1.1)
    return figure
