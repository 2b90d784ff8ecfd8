"""The chart of speedups over the script before."""

import numpy as np

from Utils.base.text import number
from Utils.draw import chart_labels, chart_style, interval_rows
from Utils.draw.interval_rows import Column
from Utils.results import selection


def draw(rows, lines):
    """Draw the speedup of each technique over the script before it, a point with its interval over
    rounds, and beside it the speedup over the baseline and what it costs in memory and loss."""
    lines, without_value = chart_labels.measured(lines)
    ratios = list(lines.parent_speedup)
    unit, scale, form = chart_labels.memory_unit(rows)
    memory = [number(mib / scale, form) for mib in lines.peak_memory_mib]
    losses = [number(loss, ".3f") for loss in lines.loss]
    columns = (
        Column(1.4, "over the\nscript before", [str(ratio) for ratio in ratios]),
        Column(1.62, "over the\nbaseline", [ratio.text for ratio in lines.speedup]),
        Column(1.95, f"peak memory\n({unit})", memory),
        Column(2.14, "loss\n(nats)", losses),
    )
    head = "Each technique against the script before it", selection.describe(rows)
    xlabel = "step time of the script before / step time (x)"
    series = interval_rows.by_verdict(ratios)
    figure, axes = interval_rows.forest(_names(lines), series, head, xlabel, columns, values=False)
    chart_style.below(axes, without_value)
    for y, (name, line) in enumerate(lines.iterrows()):
        if np.isnan(line.step_ms):
            chart_style.no_value(axes, y, line.reason)
        elif not line.parent_speedup:
            is_baseline = name == line.base
            reason = "the baseline" if is_baseline else "the script before was not measured"
            chart_style.no_value(axes, y, reason)
    return figure


def _names(lines):
    """Return the names of the rows, each with the script before it where that is another row."""
    names = []
    for above, (_, line) in zip([None, *lines.index], lines.iterrows(), strict=False):
        jumps = isinstance(line.parent, str) and line.parent != above
        label = chart_labels.label(line)
        names.append(f"{label}\nover {line.parent}" if jumps else label)
    return names
