"""The chart of an ablation."""

import numpy as np

from Utils.analysis.attribution import WAYS
from Utils.analysis.intervals import NO_INTERVAL, numbers
from Utils.draw import chart_style
from Utils.results import selection

MARKERS = dict(zip(WAYS, "o^s", strict=True))
COLOURS = dict(zip(WAYS, ("#0173b2", "0.55", "#de8f05"), strict=True))
TICKS = (0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)


def draw(rows, lines, whole):
    """Draw the speedup of each technique in each of WAYS, points with intervals."""
    whole = f"{whole.partition('+')[0]} with all" if "+" in whole else whole
    title = f"Ablation: speedup of each technique alone, in the ladder, and in {whole}"
    figure, axes = chart_style.figure(2 + 0.62 * len(lines), title, selection.describe(rows))
    ratios = {way: numbers(lines[way]) for way in WAYS}
    intervals = any(ratio.low.notna().any() for ratio in ratios.values())
    for offset, way in zip((-0.22, 0, 0.22), WAYS, strict=True):
        y = np.arange(len(lines)) + offset
        for ratio, height in zip(lines[way], y, strict=True):
            if not ratio:
                continue
            ends = [ratio.low, ratio.high]
            axes.plot(ends, [height, height], color=COLOURS[way], lw=1.8, zorder=2)
            place = np.nanmax([ratio.value, ratio.high]), height
            how = {"textcoords": "offset points", "va": "center", "size": "small", "color": "0.2"}
            axes.annotate(ratio.text, place, (7, 0), **how)
        axes.plot(
            ratios[way].value, y, MARKERS[way], color=COLOURS[way], ms=7, zorder=3, label=WAYS[way]
        )
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.02, high * 1.12)
    chart_style.ratio_ticks(axes, TICKS)
    chart_style.name_rows(axes, lines.index, top=-0.5)
    spread = "line: 95% interval over rounds" if intervals else NO_INTERVAL
    axes.set_xlabel(f"step time without / with the technique (x)\n{spread}")
    axes.legend(**chart_style.BESIDE)
    return figure
