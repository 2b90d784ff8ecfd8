"""The chart of step times as a heatmap."""

import numpy as np
import seaborn as sns
from matplotlib.colors import LogNorm, Normalize

from Utils.analysis import round_levels
from Utils.draw import chart_labels, chart_style
from Utils.results import selection


def draw(rows, lines):
    """Draw milliseconds a step, technique by step: hiccups, drift and warm-up at a glance."""
    lines, without_value = chart_labels.measured(lines)
    height = 1.6 + 0.5 * len(lines)
    figure, axes = chart_style.figure(height, "Time of each step", selection.describe(rows))
    times, size = round_levels.by_step(rows, chart_style.STEPS)
    if len(times):
        grid = times["median"].unstack("step").reindex(lines.index)
        sns.heatmap(
            grid.rename(columns=int),
            ax=axes,
            cmap="viridis",
            norm=_colours(round_levels.scaled(selection.timed(rows)).step_ms),
            cbar_kws={"label": "step time (ms),\ncolours end at p2 and p98", "extend": "both"},
            rasterized=True,
        )
        scale = figure.axes[-1].yaxis
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter("{x:g}")
        first = times.index.get_level_values("step").min()
        axes.axvline((selection.warmup(rows) - first) / size, color="white", linewidth=2)
    axes.set_facecolor("0.93")
    axes.grid(False)
    axes.set_xlabel(f"step (left of the white line: warm-up){without_value}")
    axes.set_ylabel("")
    for y, (_, line) in enumerate(lines.iterrows()):
        if np.isnan(line.step_ms):
            chart_style.no_value(axes, y + 0.5, chart_labels.reason(line))
    labels = [chart_labels.label(line, tainted=True) for _, line in lines.iterrows()]
    chart_style.name_rows(axes, labels, lines.step_ms.isna(), top=0, middle=0.5)
    return figure


def _colours(step_ms):
    """Return the scale of colours, which a hiccup does not stretch."""
    if step_ms.empty:
        return Normalize(0, 1)
    low, high = np.percentile(step_ms, [2, 98])
    return LogNorm(low, high) if chart_style.is_wide(low, high) else Normalize(low, high)
