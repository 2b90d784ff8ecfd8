"""The chart of a comparison."""

from Utils.analysis import comparison
from Utils.draw import chart_style, interval_rows
from Utils.draw.interval_rows import Column


def draw(a, b):
    """Draw the speedup of B over A (Sides), a point a technique with its interval, and beside it
    what either side costs in memory and loss."""
    ratios = comparison.compare(a, b)
    names = list(ratios.index)

    def both(form):
        return [" | ".join(side.cell(name, form) or "-" for side in (a, b)) for name in names]

    columns = (
        Column(1.42, "B over A", [str(ratio) for ratio in ratios]),
        Column(1.8, "peak memory (MiB)\nA | B", both(comparison.memory_text)),
        Column(2.1, "loss (nats)\nA | B", both(comparison.loss_text)),
    )
    head = "Speedup of B over A", str(a), str(b)
    xlabel = "tokens per second of B / of A (x)"
    series = interval_rows.by_verdict(ratios)
    figure, axes = interval_rows.forest(names, series, head, xlabel, columns, values=False)
    for y, (name, ratio) in enumerate(ratios.items()):
        if not ratio:
            chart_style.no_value(axes, y, comparison.why_not(a, b, name))
    return figure
