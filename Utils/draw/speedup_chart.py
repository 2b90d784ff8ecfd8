"""The chart of speedups over the baseline."""

import textwrap

import numpy as np
import pandas as pd

from Utils.analysis.intervals import NO_INTERVAL, numbers
from Utils.base.text import number
from Utils.draw import chart_labels, chart_style, interval_rows
from Utils.draw.interval_rows import Column
from Utils.results import selection

FLOOR = "0.35"  # the colour of the modelled floor
FARTHEST = 4  # times the longest bar that the axis is stretched to show it
COLUMNS = (
    Column(1.13, "right", "peak memory\n(MiB)"),
    Column(1.22, "right", "loss\n(nats)"),
    Column(1.25, "left", "verdict\nover parent"),
    Column(1.43, "left", "parity"),
)


def draw(rows, lines):
    """Draw the speedup over the baseline, a bar a technique, with its interval over rounds (with
    one round the spread of its steps), its parent's value, and what it costs in memory and loss."""
    lines, without_value = chart_labels.measured(lines)
    height = 1.8 + 0.5 * len(lines)
    title = "Speedup over the baseline"
    figure, axes = chart_style.figure(height, title, selection.describe(rows))
    spans = _spans(lines)
    widest = max([1, *spans.to_numpy()[np.isfinite(spans)]])
    for y, (name, line) in enumerate(lines.iterrows()):
        if chart_labels.reason(line):
            chart_style.no_value(axes, y, chart_labels.reason(line))
        else:
            parent = spans.value.get(line.parent, np.nan)
            _draw_bar(axes, y, line, spans.loc[name], parent)
        interval_rows.words(axes, y, COLUMNS, _cells(line))
    interval_rows.headings(axes, COLUMNS, -0.75)
    interval_rows.mark_one(axes)
    # Of the fastest precision.
    floor = lines.step_ms.get(lines.base.iloc[0], np.nan) / lines.floor_ms.min()
    axes.set_xlim(0, _draw_floor(axes, floor, widest) * 1.12)
    one_round = f"line: p20-p80 of the steps ({NO_INTERVAL})"
    spread = "line: 95% interval over rounds" if _has_intervals(lines) else one_round
    hatched = (lines.grade == "tainted").any()
    tainted = "; hatched: tainted runs among them" if hatched else ""
    meaning = f"{spread}; diamond: the parent's value{tainted}{without_value}"
    axes.set_xlabel(f"step time of the baseline / step time (x)\n{meaning}")
    labels = [chart_labels.label(line) for _, line in lines.iterrows()]
    chart_style.name_rows(axes, labels, lines.step_ms.isna())
    return figure


def _has_intervals(lines):
    return numbers(lines.speedup).low.notna().any()


def _spans(lines):
    """Return value, low and high of each bar: its interval; of one round p20 and p80 of its
    steps."""
    spans = numbers(lines.speedup)
    if not _has_intervals(lines):
        baseline = spans.value * lines.step_ms  # of as many tokens
        spans = spans.assign(low=baseline / lines.p80_ms, high=baseline / lines.p20_ms)
    return spans.replace([np.inf, -np.inf], np.nan)


def _draw_bar(axes, y, line, span, parent):
    hatch = "///" if line.grade == "tainted" else None
    look = {"color": chart_style.colour(line.name), "hatch": hatch, "ec": "white", "lw": 0}
    axes.barh(y, span.value, height=0.7, zorder=2, **look)
    end = interval_rows.interval(axes, y, span.low, span.high)
    if not np.isnan(parent):
        axes.plot(parent, y, "D", color="white", mec="black", ms=6, zorder=4)
    right = np.nanmax([span.value, end, parent])
    interval_rows.value(axes, y, right, line.speedup.text, weight="bold", bbox=None)


def _cells(line):
    """Return the texts of COLUMNS."""
    verdicts = []
    for word in (line.parent_speedup.verdict, line.parity):
        is_verdict = not pd.isna(word) and word != NO_INTERVAL
        verdicts.append("\n".join(textwrap.wrap(word, 16)) if is_verdict else "")
    return [number(line.peak_memory_mib, ",.0f"), number(line.loss, ".3f"), *verdicts]


def _draw_floor(axes, floor, widest):
    """Draw the modelled floor where it is known. Return what the axis has to reach."""
    if not np.isfinite(floor):
        return widest
    if floor > FARTHEST * widest:
        note = f"modelled floor: {floor:.1f}x, beyond the axis"
        axes.text(0.99, 0.01, note, transform=axes.transAxes, ha="right", color=FLOOR)
        return widest
    axes.axvline(floor, color=FLOOR, linestyle="--", linewidth=1.2, zorder=1)
    look = {"transform": axes.get_xaxis_transform(), "ha": "right", "color": FLOOR, "size": "small"}
    axes.text(floor, 0.01, f"modelled floor: {floor:.1f}x ", rotation=90, va="bottom", **look)
    return max(widest, floor / 1.08)
