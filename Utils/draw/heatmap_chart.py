"""The chart of step times as a heatmap."""

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from Utils.analysis import intervals
from Utils.draw import chart_labels, chart_style
from Utils.results import selection


def draw(rows, lines):
    """Draw milliseconds a step, technique by step: hiccups and drift at a glance. Warm-up has a
    scale of its own."""
    lines, without_value = chart_labels.measured(lines)
    height = 1.6 + 0.4 * len(lines)
    figure, axes = chart_style.figure(height, "Time of each step", selection.describe(rows))
    times, size = intervals.by_step(rows, chart_style.STEPS)
    times = times["median"].unstack("step").reindex(lines.index)
    for part, colours, label in (
        (times.loc[:, times.columns < 0], "copper_r", "warm-up (ms)"),
        (times.loc[:, times.columns >= 0], "viridis", "step time (ms)"),
    ):
        if part.size:
            edges = [*part.columns, part.columns[-1] + size]
            heights = np.arange(len(lines) + 1)
            look = {"cmap": colours, "norm": _scale(part), "rasterized": True}
            mesh = axes.pcolormesh(edges, heights, part, **look)
            bar = figure.colorbar(mesh, ax=axes, label=label, extend="both", pad=0.02)
            bar.ax.yaxis.set_major_formatter("{x:g}")
            bar.ax.yaxis.set_minor_formatter("{x:g}")
    axes.set_facecolor("white")
    axes.grid(False)
    scales = "before 0: warm-up; colours end at the 2nd and 98th percentile"
    axes.set_xlabel(f"step ({scales})")
    chart_style.below(axes, without_value)
    chart_style.name_rows(axes, chart_labels.labels(lines), top=0, middle=0.5)
    return figure


def _scale(times):
    """Return the scale of colours, which a hiccup does not stretch."""
    low, high = np.nanpercentile(times, [2, 98])
    return LogNorm(low, high) if chart_style.is_wide(low, high) else Normalize(low, high)
