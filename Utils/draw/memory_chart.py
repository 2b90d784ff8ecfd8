"""The chart of peak memory."""

import numpy as np

from Utils.analysis.summary import MEMORY_KINDS
from Utils.draw import chart_labels, chart_style
from Utils.results import selection

LIGHT = "0.85"
COLOURS = (chart_style.BLUE, chart_style.SKY, chart_style.ORANGE, LIGHT)
REST = ": activations,\nworkspace, libraries"


def draw(rows, lines):
    """Draw peak memory, a bar a technique, stacked by kind; a tick marks the measured peak."""
    lines, without_value = chart_labels.measured(lines)
    height = 1.6 + 0.36 * len(lines)
    figure, axes = chart_style.figure(height, "Peak memory by kind", selection.describe(rows))
    unit, scale, form = chart_labels.memory_unit(rows)
    kinds = lines[list(MEMORY_KINDS)].fillna(0) / scale
    peaks = lines.peak_memory_mib / scale
    unknown = peaks.where(kinds.sum(axis=1) == 0).fillna(0)
    y = np.arange(len(lines))
    left = 0
    for kind, colour in zip(MEMORY_KINDS, COLOURS, strict=True):
        label = kind.removesuffix("_mib").replace("_", " ") + REST * (kind == "rest_mib")
        axes.barh(y, kinds[kind], left=left, color=colour, height=0.7, zorder=2, label=label)
        left = left + kinds[kind]
    axes.barh(y, unknown, color=chart_style.GREY, height=0.7, zorder=2)
    axes.plot(peaks, y, "|", color="black", ms=16, mew=1.5, zorder=3, label="measured peak")
    right = np.fmax(left, peaks)
    for row, (peak, end) in enumerate(zip(peaks, right, strict=True)):
        if np.isfinite(peak):
            text = format(peak, form)
            axes.annotate(
                text, (end, row), (6, 0), va="center", weight="bold", **chart_style.POINTS
            )
    if left.any():
        axes.legend(**chart_style.BESIDE)
    axes.set_xlim(0, max(right.max(), 1e-3) * 1.14)
    axes.set_xlabel(f"memory ({unit}); median of the runs")
    chart_style.below(axes, without_value)
    chart_style.name_rows(axes, chart_labels.labels(lines))
    return figure
