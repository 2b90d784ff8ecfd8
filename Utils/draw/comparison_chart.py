"""The chart of a comparison."""

from Utils.analysis import comparison
from Utils.draw import chart_style, interval_rows
from Utils.draw.interval_rows import Column


def draw(a, b):
    """Draw the speedup of B over A (Sides), a point a technique with its interval, and beside it
    what either side costs in memory and loss."""
    ratios = comparison.compare(a, b)
    texts = comparison.columns(a, b, ratios)
    columns = (
        Column(1.42, "B over A", texts["B over A"]),
        Column(1.8, "peak memory (MiB)\nA | B", texts["peak memory (MiB), A | B"]),
        Column(2.1, "loss (nats)\nA | B", texts["loss, A | B"]),
    )
    head = "Speedup of B over A", str(a), str(b)
    xlabel = "tokens per second of B / of A (x)"
    series = interval_rows.by_verdict(ratios)
    figure, axes = interval_rows.forest(
        texts["technique"], series, head, xlabel, columns, values=False
    )
    for y, (ratio, note) in enumerate(zip(ratios, texts["note"], strict=True)):
        if not ratio:
            chart_style.no_value(axes, y, note)
    return figure
