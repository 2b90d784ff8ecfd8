"""The chart of peak memory."""

import numpy as np
import seaborn as sns

from Utils.analysis.summary import MEMORY_KINDS
from Utils.draw import chart_labels, chart_style
from Utils.results import selection

COLOURS = dict(zip(MEMORY_KINDS, [*sns.color_palette("Set2", 3), "0.8"], strict=True))
REST = ": activations,\nworkspace, libraries"


def draw(rows, lines):
    """Draw peak memory, a bar a technique, stacked by kind; a tick marks the measured peak."""
    lines, without_value = chart_labels.measured(lines)
    height = 1.8 + 0.5 * len(lines)
    figure, axes = chart_style.figure(height, "Peak memory by kind", selection.describe(rows))
    peaks = lines.peak_memory_mib.replace(np.inf, np.nan)
    kinds = lines[list(MEMORY_KINDS)]
    widest = np.nanmax([1, peaks.max(), kinds.sum(axis=1).max()])
    unit, scale, form = ("GiB", 1024, ",.2f") if widest >= 4096 else ("MiB", 1, ",.0f")
    for y, (name, line) in enumerate(lines.iterrows()):
        if np.isnan(line.step_ms):
            chart_style.no_value(axes, y, chart_labels.reason(line))
            continue
        left = 0
        for kind, colour in COLOURS.items():
            width = 0 if np.isnan(line[kind]) else line[kind] / scale
            axes.barh(y, width, left=left, color=colour, height=0.7, zorder=2)
            left += width
        if np.isnan(peaks[name]):
            continue
        peak = peaks[name] / scale
        if not left:
            axes.barh(y, peak, color=chart_style.GREY, height=0.7, zorder=2)
        axes.plot([peak, peak], [y - 0.4, y + 0.4], color="black", lw=1.5, zorder=3)
        right = max(left, peak) + 0.015 * widest / scale
        axes.text(right, y, format(peak, form), va="center", fontweight="bold")
    for kind, colour in COLOURS.items():
        label = kind.removesuffix("_mib").replace("_", " ")
        axes.barh(0, 0, color=colour, label=label + REST * (kind == "rest_mib"))
    axes.plot([], [], "|", color="black", ms=12, mew=1.5, label="measured peak")
    if kinds.notna().any(axis=None):
        axes.legend(**chart_style.BESIDE)
    axes.set_xlim(0, widest * 1.14 / scale)
    axes.set_xlabel(f"memory ({unit}); median of the runs{without_value}")
    labels = [chart_labels.label(line) for _, line in lines.iterrows()]
    chart_style.name_rows(axes, labels, lines.step_ms.isna())
    return figure
