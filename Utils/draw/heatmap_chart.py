"""The chart of step times as a heatmap."""

import numpy as np
import seaborn as sns
from matplotlib.colors import LogNorm, Normalize

from Utils.analysis import round_levels
from Utils.base.text import brief
from Utils.draw import chart_labels, chart_style
from Utils.draw.chart_style import GREY
from Utils.results import selection


def draw(rows, lines):
    """Draw milliseconds a step, technique by step: hiccups, drift and warm-up at a glance."""
    lines, others = chart_labels.measured(lines)
    height, described = 1.6 + 0.5 * len(lines), selection.describe(rows)
    figure, axes = chart_style.figure(height, "Time of each step", described)
    measured, (times, _) = selection.timed(rows).step_ms, round_levels.by_step(rows)
    low, high = np.percentile(measured, [2, 98]) if len(measured) else (0, 1)
    if len(times):
        grid = times["median"].unstack("step").reindex(lines.index)
        sns.heatmap(
            grid.rename(columns=int),
            ax=axes,
            cmap="viridis",
            norm=LogNorm(low, high) if high > 4 * low > 0 else Normalize(low, high),
            cbar_kws={"label": "step time (ms),\ncolours end at p2 and p98", "extend": "both"},
        )
        scale = figure.axes[-1].yaxis
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter("{x:g}")
    axes.set_facecolor("0.93")
    axes.axvline(selection.warmup(rows), color="white", linewidth=2)
    axes.grid(False)
    axes.set(xlabel=f"step (left of the white line: warm-up){others}", ylabel="")
    for y, (_, line) in enumerate(lines.iterrows()):
        if np.isnan(line.median_ms):
            chart_style.beside(
                axes, 0.01, y + 0.5, brief(chart_labels.reason(line)), ha="left", color=GREY
            )
    labels = [chart_labels.label(line, tainted=True) for _, line in lines.iterrows()]
    chart_style.name_rows(axes, labels, lines.median_ms.isna(), top=0, middle=0.5)
    return figure
