"""The chart of speedups over the baseline."""

import textwrap

import numpy as np
import pandas as pd

from Utils.analysis.intervals import NO_INTERVAL, numbers
from Utils.base.text import brief, number
from Utils.draw import chart_labels, chart_style
from Utils.results import selection
from Utils.scripts import bases

FLOOR = "0.35"  # the colour of the modelled floor
FARTHEST = 4  # times the longest bar that the axis is stretched to show it
COLUMNS = (  # right of the bars: place, its alignment, heading
    (1.13, "right", "peak memory\n(MiB)"),
    (1.22, "right", "loss\n(nats)"),
    (1.25, "left", "verdict\nover parent"),
    (1.43, "left", "parity"),
)


def draw(rows, lines):
    """Draw the speedup over the baseline, a bar a technique, with its interval over rounds (with
    one round the spread of its steps), its parent's value, and what it costs in memory and loss."""
    lines, others = chart_labels.measured(lines)
    height, described = 1.8 + 0.5 * len(lines), selection.describe(rows)
    figure, axes = chart_style.figure(height, "Speedup over the baseline", described)
    speedup = numbers(lines.speedup)
    intervals = speedup.low.notna().any()
    median = speedup.value * lines.median_ms  # the baseline's, of as many tokens
    low = speedup.low if intervals else median / lines.p80_ms
    high = speedup.high if intervals else median / lines.p20_ms
    widest = np.nanmax([1, speedup.value.max(), high.max()])
    for y, (name, line) in enumerate(lines.iterrows()):
        if np.isnan(line.median_ms) or not line.speedup:
            axes.text(
                0.01 * widest,
                y,
                brief(chart_labels.reason(line)),
                va="center",
                color=chart_style.GREY,
            )
        else:
            parent = speedup.value.get(line.parent, np.nan)
            _draw_bar(axes, y, line, low[name], high[name], parent)
        cells = number(line.peak_memory_mib, ",.0f"), number(line.loss, ".3f")
        for (x, align, _), cell in zip(COLUMNS, (*cells, *_verdicts(line)), strict=True):
            chart_style.beside(
                axes, x, y, cell, ha=align, size="small" if align == "left" else None
            )
    for x, align, heading in COLUMNS:
        chart_style.beside(axes, x, -0.75, heading, ha=align, va="bottom", size="small")
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    # Of the fastest precision.
    floor = lines.median_ms.get(lines.base.iloc[0], np.nan) / lines.floor_ms.min()
    axes.set_xlim(0, _draw_floor(axes, floor, widest) * 1.12)
    spread = "95% interval over rounds" if intervals else f"p20-p80 of the steps ({NO_INTERVAL})"
    hatched = (lines.grade == "tainted").any()
    tainted = "; hatched: tainted runs among them" if hatched else ""
    axes.set_xlabel(
        "step time of the baseline / step time (x)\n"
        f"line: {spread}; diamond: the parent's value{tainted}{others}"
    )
    labels = [chart_labels.label(line) for _, line in lines.iterrows()]
    chart_style.name_rows(axes, labels, lines.median_ms.isna())
    return figure


def _draw_bar(axes, y, line, low, high, parent):
    hatch = "///" if line.grade == "tainted" else None
    colour = chart_style.colours().get(bases.last(line.name), chart_style.GREY)
    how = {"color": colour, "hatch": hatch, "ec": "white", "lw": 0, "height": 0.7}
    axes.barh(y, line.speedup.value, zorder=2, **how)
    if not np.isnan(low):
        axes.plot([low, high], [y, y], color="black", lw=1.5, zorder=3)
    if not np.isnan(parent):
        axes.plot(parent, y, "D", color="white", mec="black", ms=6, zorder=4)
    place = np.nanmax([line.speedup.value, high, parent]), y
    how = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
    axes.annotate(line.speedup.text, place, (8, 0), **how)  # past the diamond's half


def _verdicts(line):
    """Return the verdicts on time and on what is computed, each wrapped to its column."""
    for word in (line.parent_speedup.verdict, line.parity):
        word = "" if pd.isna(word) or word == NO_INTERVAL else word
        yield "\n".join(textwrap.wrap(word, 16))


def _draw_floor(axes, floor, widest):
    """Draw the modelled floor where it is known. Return what the axis has to reach."""
    if np.isnan(floor):
        return widest
    if floor > FARTHEST * widest:
        note = f"modelled floor: {floor:.1f}x, beyond the axis"
        axes.text(0.99, 0.01, note, transform=axes.transAxes, ha="right", color=FLOOR)
        return widest
    axes.axvline(floor, color=FLOOR, linestyle="--", linewidth=1.2, zorder=1)
    how = {"transform": axes.get_xaxis_transform(), "ha": "right", "color": FLOOR, "size": "small"}
    axes.text(floor, 0.01, f"modelled floor: {floor:.1f}x ", rotation=90, va="bottom", **how)
    return max(widest, floor / 1.08)
