"""The chart of a comparison."""

from Utils.analysis import comparison
from Utils.analysis.intervals import numbers
from Utils.draw import chart_style, interval_rows
from Utils.draw.interval_rows import Column

COLUMNS = (
    Column(1.03, "left", "verdict\non B"),
    Column(1.66, "right", "peak memory (MiB)\nA | B"),
    Column(2, "right", "loss (nats)\nA | B"),
)


def draw(a, b):
    """Draw the speedup of B over A (Sides), a point a technique with its interval, the verdict
    beside it, and what either side costs in memory and loss."""
    ratios = comparison.compare(a, b)
    title = "Speedup of B over A"
    figure, axes = chart_style.figure(2.3 + 0.5 * len(ratios), title, str(a), str(b))
    figure.subplots_adjust(right=0.66)  # the columns of words and numbers need room
    left = min(interval_rows.ends(ratios))
    # An interval from two rounds can be many times as wide as all the rest.
    most = max([1, *numbers(ratios).value.dropna()])
    right = min(3 * most, max(interval_rows.ends(ratios)))
    width = max(right - left, 0.1)
    bold = {"weight": "bold"}
    for y, (name, ratio) in enumerate(ratios.items()):
        if ratio:
            look = {"line": "black", "text": bold, "mec": "black", "ms": 9}
            interval_rows.point(axes, y, ratio, chart_style.colour(name), right, **look)
        else:
            chart_style.no_value(axes, y, comparison.why_not(a, b, name))
        both = [
            " | ".join(side.cell(name, cell) or "-" for side in (a, b))
            for cell in (comparison.memory_text, comparison.loss_text)
        ]
        interval_rows.words(axes, y, COLUMNS, [ratio.verdict, *both])
    interval_rows.headings(axes, COLUMNS, -0.5)
    interval_rows.mark_one(axes)
    axes.set_xlim(max(0, left - 0.05 * width), right + 0.25 * width)
    spread = interval_rows.spread(ratios, "line: 95% interval over rounds (Welch's t)")
    axes.set_xlabel(f"tokens per second of B / of A (x)\n{spread}")
    chart_style.name_rows(axes, ratios.index, [not ratio for ratio in ratios], top=-1.1)
    return figure
