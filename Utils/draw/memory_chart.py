"""The chart of peak memory."""

import numpy as np
import seaborn as sns

from Utils.analysis.summary import MEMORY_KINDS
from Utils.base.text import brief
from Utils.draw import chart_labels, chart_style
from Utils.draw.chart_style import GREY
from Utils.results import selection

COLOURS = dict(zip(MEMORY_KINDS, [*sns.color_palette("Set2", 3), "0.8"], strict=True))
REST = ": activations,\nworkspace, libraries"


def draw(rows, lines):
    """Draw peak memory, a bar a technique, stacked by kind; a tick marks the measured peak."""
    title, (lines, others) = "Peak memory by kind", chart_labels.measured(lines)
    figure, axes = chart_style.figure(1.8 + 0.5 * len(lines), title, selection.describe(rows))
    kinds = lines[list(MEMORY_KINDS)]
    widest = np.nanmax([1, lines.peak_memory_mib.max(), kinds.sum(axis=1).max()])
    unit, scale, form = ("GiB", 1024, ",.2f") if widest >= 4096 else ("MiB", 1, ",.0f")
    for y, (_, line) in enumerate(lines.iterrows()):
        if np.isnan(line.median_ms):
            axes.text(
                0.01 * widest / scale, y, brief(chart_labels.reason(line)), va="center", color=GREY
            )
            continue
        left = 0
        for kind, colour in COLOURS.items():
            width = 0 if np.isnan(line[kind]) else line[kind] / scale
            axes.barh(y, width, left=left, color=colour, height=0.7, zorder=2)
            left += width
        peak = line.peak_memory_mib / scale
        if not left:
            axes.barh(y, peak, color=GREY, height=0.7, zorder=2)
        axes.plot([peak, peak], [y - 0.4, y + 0.4], color="black", lw=1.5, zorder=3)
        right = max(left, peak) + 0.015 * widest / scale
        axes.text(right, y, format(peak, form), va="center", fontweight="bold")
    for kind, colour in COLOURS.items():
        label = kind.removesuffix("_mib").replace("_", " ")
        axes.barh(0, 0, color=colour, label=label + REST * (kind == "rest_mib"))
    axes.plot([], [], "|", color="black", ms=12, mew=1.5, label="measured peak")
    if kinds.notna().any(axis=None):
        axes.legend(**chart_style.BESIDE)
    axes.set(xlim=(0, widest * 1.14 / scale), xlabel=f"memory ({unit}); median of the runs{others}")
    labels = [chart_labels.label(line) for _, line in lines.iterrows()]
    chart_style.name_rows(axes, labels, lines.median_ms.isna())
    return figure
