"""The chart of an ablation."""

import itertools

from Utils.analysis.attribution import WAYS
from Utils.draw import chart_style, interval_rows
from Utils.results import selection

MARKERS = dict(zip(WAYS, "o^s", strict=True))
COLOURS = dict(zip(WAYS, ("#0173b2", "0.55", "#de8f05"), strict=True))
OFFSETS = dict(zip(WAYS, (-0.22, 0, 0.22), strict=True))


def draw(rows, lines, whole):
    """Draw the speedup of each technique in each of WAYS, points with intervals."""
    last = f"{whole.partition('+')[0]} with all" if "+" in whole else whole
    title = f"Ablation: speedup of each technique alone, in the ladder, and in {last}"
    figure, axes = chart_style.figure(2 + 0.62 * len(lines), title, selection.describe(rows))
    text = {"size": "small", "color": "0.2"}
    for way, label in WAYS.items():
        look = {"marker": MARKERS[way], "color": COLOURS[way]}
        axes.plot([], [], ls="", ms=7, label=label, **look)
        for y, ratio in enumerate(lines[way]):
            if ratio:
                height = y + OFFSETS[way]
                marker = MARKERS[way]
                interval_rows.point(axes, height, ratio, COLOURS[way], text=text, marker=marker)
    interval_rows.mark_one(axes)
    ratios = list(itertools.chain.from_iterable(lines[way] for way in WAYS))
    interval_rows.logarithmic(axes, ratios, room=0.1)
    chart_style.name_rows(axes, lines.index, top=-0.5)
    spread = interval_rows.spread(ratios)
    axes.set_xlabel(f"step time without / with the technique (x)\n{spread}")
    axes.legend(**chart_style.BESIDE)
    return figure
