"""Charts of ratios with intervals: ablation, comparison, devices side by side, scaling."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import comparison
from Utils.analysis.attribution import WAYS
from Utils.analysis.intervals import NO_INTERVAL, Ratio, numbers
from Utils.draw import chart_style
from Utils.results import selection

FINE_TICKS = (0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 3, 4, 6, 8)
COARSE_TICKS = (0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 100, 1000)
VERDICTS = {  # style of a point by its verdict
    Ratio.higher: {"color": chart_style.BLUE, "marker": "o"},
    Ratio.lower: {"color": chart_style.RED, "marker": "s"},
    Ratio.no_difference: {"color": chart_style.GREY, "marker": "o", "mfc": "white"},
}
NO_VERDICT = {"color": chart_style.GREY, "marker": "D"}
LOOKS = (  # styles of the points, one for each of WAYS
    {"color": chart_style.BLUE, "marker": "o"},
    {"color": chart_style.GREY, "marker": "^"},
    {"color": chart_style.ORANGE, "marker": "s"},
)

VALUE = {"va": "center", "size": "small", "color": "0.2", "zorder": 2, **chart_style.POINTS}
VALUE["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # no grid through it


@dataclass(frozen=True)
class Series:
    """Ratios, one a row, and the style of their points.

    False ratios are not drawn.
    row_line: index of the line within a row.
    """

    label: str
    ratios: list
    style: dict
    row_line: int = 0


def by_verdict(ratios):
    """Return the Series of ratios by their verdicts."""
    series = []
    for verdict in dict.fromkeys([*VERDICTS, *(ratio.verdict for ratio in ratios)]):
        of_verdict = [ratio if ratio.verdict == verdict else Ratio() for ratio in ratios]
        series.append(Series(verdict, of_verdict, VERDICTS.get(verdict, NO_VERDICT)))
    return series


def forest(names, series, head, xlabel, columns=(), values=True, width=chart_style.WIDTH):
    """Return a figure of Series on a logarithmic axis, a row a name, and its axes.

    head: title, and lines below it.
    columns: text right of the rows, each (x as a fraction of the axes' width, heading, texts).
    values: write the ratios right of the points.
    """
    series = [group for group in series if any(group.ratios)]
    lines = 1 + max((group.row_line for group in series), default=0)
    row = 0.4 if lines == 1 else (lines + 1) * (0.21 if values else 0.13)
    if any("\n" in name for name in names):
        row = max(row, 0.5)
    room = 24 if columns else 0
    figure, (axes,) = chart_style.figure(1.2 + row * len(names), *head, room=room, width=width)

    # The axis, as long as the ratios need.
    ratios = [ratio for group in series for ratio in group.ratios if _has_point(ratio)]
    ends = numbers(pd.Series([Ratio(1.0), *ratios]))
    low, high = ends.min().min(), ends.max().max()
    axes.set_xscale("log")
    axes.set_xlim(low / 1.06, 1.06 * high * (high / low) ** (0.12 if values else 0))
    left, right = axes.get_xlim()
    ticks = FINE_TICKS if high <= 8 * low else COARSE_TICKS
    ticks = [x for x in ticks if left <= x <= right]
    axes.set_xticks(ticks, [f"{x:g}x" for x in ticks])
    axes.minorticks_off()

    # The points.
    for group in series:
        offset = 0.8 * ((group.row_line + 0.5) / lines - 0.5)
        style = {"ms": 7, **group.style}
        axes.plot([], [], ls="", label=group.label, **style)
        for row_number, ratio in enumerate(group.ratios):
            y = row_number + offset
            right_end = 1
            if _has_point(ratio):
                axes.plot([ratio.low, ratio.high], [y, y], color=style["color"], lw=1.8, zorder=3)
                axes.plot(ratio.value, y, zorder=4, **style)
                right_end = np.fmax(ratio.value, ratio.high)
            if ratio and values:
                axes.annotate(ratio.text, (right_end, y), (9, 0), **VALUE)
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)

    # The columns, the names and the legend.
    for x, heading, texts in columns:
        chart_style.beside(axes, x, -0.7, heading, va="bottom", size="small")
        for y, text in enumerate(texts):
            chart_style.beside(axes, x, y, text, size="small")
    chart_style.name_rows(axes, names)
    meaning = NO_INTERVAL if ratios else ""
    if any(ratio.interval for ratio in ratios):
        meaning = "line: 95% interval"
    axes.set_xlabel(f"{xlabel}\n{meaning}")
    if series:
        below = {"bbox_to_anchor": (1, -0.02), "ncol": len(series), "fontsize": "small"}
        axes.legend(**chart_style.LEGEND_BESIDE | (below if columns else {}))
    if columns:
        figure.subplots_adjust(right=0.5)
        axes.tick_params(axis="y", labelsize="small")
    return figure, axes


def _has_point(ratio):
    """Return whether a Ratio is drawn: one that is uncertain is not."""
    return bool(ratio) and not ratio.is_uncertain


def ablation(rows, lines, whole):
    """Draw the speedup of each technique in each of WAYS, points with intervals."""
    last = f"{whole.partition('+')[0]} with all" if "+" in whole else whole
    title = f"{rows.device.iloc[0]}: each technique alone, on those before it, and last in {last}"
    series = [
        Series(WAYS[way], list(lines[way]), look, line)
        for line, (way, look) in enumerate(zip(WAYS, LOOKS, strict=True))
    ]
    xlabel = "step time without / with the technique (x)"
    return forest(list(lines.index), series, (title, selection.description(rows)), xlabel)[0]


def comparison_chart(a, b):
    """Draw the speedup of B over A (Sides) with its interval, and columns of memory and loss."""
    ratios = comparison.compare(a, b)
    texts = comparison.columns(a, b, ratios)
    columns = (
        (1.42, "B over A", texts["B over A"]),
        (1.8, "peak memory (MiB)\nA | B", texts["peak memory (MiB), A | B"]),
        (2.1, "loss (nats)\nA | B", texts["loss, A | B"]),
    )
    head = "Speedup of B over A", comparison.caution(a, b), str(a), str(b)
    xlabel = "tokens per second of B / of A (x)"
    series = by_verdict(ratios)

    figure, axes = forest(texts["technique"], series, head, xlabel, columns, values=False)
    for y, (ratio, note) in enumerate(zip(ratios, texts["note"], strict=True)):
        if not ratio:
            chart_style.no_value(axes, y, note)
    return figure
