"""Charts of ratios with intervals: ablation, comparison, devices side by side."""

from dataclasses import dataclass

from matplotlib.ticker import LogLocator, MaxNLocator

from Utils.analysis.attribution import WAYS
from Utils.analysis.intervals import INCONCLUSIVE, NO_INTERVAL, Ratio
from Utils.draw import chart_style
from Utils.results import selection

LINEAR = 8  # an axis of a smaller range has ticks at equal distances
LETTER = 0.08  # width of a small letter, in inches
VERDICTS = {  # style of a point by its verdict
    Ratio.higher: {"color": chart_style.BLUE, "marker": "o"},
    Ratio.lower: {"color": chart_style.RED, "marker": "s"},
    Ratio.no_difference: {"color": chart_style.GREY, "marker": "o", "mfc": "white"},
    INCONCLUSIVE: {"color": chart_style.GREY, "marker": "D"},
}
LOOKS = (  # styles of the points, one for each of WAYS
    {"color": chart_style.BLUE, "marker": "o"},
    {"color": chart_style.GREY, "marker": "^"},
    {"color": chart_style.ORANGE, "marker": "s"},
)
VALUE = {"va": "center", "size": "small", "color": "0.2", "zorder": 2, "bbox": chart_style.BOX}


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
    for verdict, style in VERDICTS.items():
        of_verdict = [ratio if ratio.verdict == verdict else Ratio() for ratio in ratios]
        series.append(Series(verdict, of_verdict, style))
    return series


def forest(
    names,
    series,
    head,
    xlabel,
    columns=None,
    values=False,
    width=chart_style.WIDTH,
    interval="95% interval, for all ratios together",
):
    """Return a figure of Series on a logarithmic axis, a row a name, and its axes.

    head: title, and lines below it.
    columns: texts right of the rows, by their heading.
    values: write the ratios right of the points.
    interval: what the lines are, in words.
    """
    series = [group for group in series if any(group.ratios)]
    lines = 1 + max((group.row_line for group in series), default=0)
    row = 0.4 if lines == 1 else (lines + 1) * (0.21 if values else 0.13)
    if any("\n" in name for name in names):
        row = max(row, 0.5)
    figure, (axes,) = chart_style.figure(
        1.2 + row * len(names),
        *head,
        room=30 if columns else 0,
        width=width,
    )

    # The points.
    axes.set_xscale("log")
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    drawn = []
    for group in series:
        offset = 0.8 * ((group.row_line + 0.5) / lines - 0.5)
        style = {"ms": 7, **group.style}
        axes.plot([], [], ls="", label=group.label, **style)
        for row_number, ratio in enumerate(group.ratios):
            if not ratio:
                continue
            y = row_number + offset
            drawn.append(ratio)
            axes.plot([ratio.low, ratio.high], [y, y], color=style["color"], lw=1.8, zorder=3)
            axes.plot(ratio.value, y, zorder=4, **style)
            if values:
                end = max(ratio.value, ratio.high)  # the value if there is no interval
                axes.annotate(ratio.text, (end, y), (9, 0), "data", "offset points", **VALUE)

    # The axis, as long as the points need, with some ticks.
    low, high = axes.dataLim.intervalx
    room = (high / low) ** 0.12 if values else 1
    left, right = axes.set_xlim(low / 1.06, 1.06 * high * room)
    locator = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10])
    if right > LINEAR * left:
        locator = LogLocator(subs=(1, 2, 5) if right < 100 * left else (1,))
    ticks = [x for x in locator.tick_values(left, right) if left <= x <= right]
    axes.set_xticks(ticks, [f"{x:g}x" for x in ticks])
    axes.minorticks_off()

    # The columns, the names and the legend.
    legend = dict(chart_style.LEGEND_BESIDE)
    if columns:
        figure.subplots_adjust(right=0.62)
        axes.tick_params(axis="y", labelsize="small")
        legend |= {"bbox_to_anchor": (1, -0.02), "ncol": len(series), "fontsize": "small"}
        x = 1
        for heading, texts in columns.items():
            letters = max(map(len, [*heading.split("\n"), *texts]))
            x += (2 + letters) * LETTER / (axes.get_position().width * width)
            chart_style.beside(axes, x, -0.7, heading, va="bottom", size="small")
            for y, text in enumerate(texts):
                chart_style.beside(axes, x, y, text, size="small")
    chart_style.name_rows(axes, names)
    meaning = NO_INTERVAL if drawn else ""
    if any(ratio.interval for ratio in drawn):
        meaning = f"line: {interval}"
    axes.set_xlabel(f"{xlabel}\n{meaning}")
    if series:
        axes.legend(**legend)
    return figure, axes


def ablation(rows, credits, whole):
    """Draw the speedup of each technique in each of WAYS, points with intervals."""
    last = f"{whole.partition('+')[0]} with all" if "+" in whole else whole
    title = f"Each technique alone, on those before it, and last in {last}"
    series = [
        Series(WAYS[way], [speedups[way] for speedups in credits.values()], look, line)
        for line, (way, look) in enumerate(zip(WAYS, LOOKS, strict=True))
    ]
    xlabel = "step time without / with the technique (x)"
    head = title, selection.description(rows)
    return forest(list(credits), series, head, xlabel, values=True)[0]


def two_sides(sides, columns, caution=""):
    """Draw the ratio of each script of TwoSides with its interval, and columns of texts.

    columns: texts by title, as `TwoSides.columns` returns them. Ratios, memory and the last column
    are drawn.
    """
    titles = "B over A", "peak memory (MiB), A | B", [*columns][-1]
    shown = {title.replace(", ", "\n"): columns[title] for title in titles}
    # What trains something else is not faster: its row has the reason.
    ratios = [
        ratio if ratio.verdict == verdict else Ratio()
        for ratio, verdict in zip(sides.ratios.values(), columns["verdict on B"], strict=True)
    ]
    head = "Speedup of B over A", caution, *sides.described
    xlabel = f"{sides.measure} (x)"
    series = by_verdict(ratios)
    names = columns["script"]
    figure, axes = forest(names, series, head, xlabel, shown, interval=sides.interval)

    for y, (ratio, note) in enumerate(zip(ratios, sides.notes.values(), strict=True)):
        if not ratio:
            chart_style.no_value(axes, y, note)
    return figure
