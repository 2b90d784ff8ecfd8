"""The chart of an ablation."""

from Utils.analysis.attribution import WAYS
from Utils.draw import chart_style, interval_rows
from Utils.draw.interval_rows import Series
from Utils.results import selection

MARKERS = dict(zip(WAYS, "o^s", strict=True))
COLOURS = dict(zip(WAYS, (chart_style.BLUE, chart_style.GREY, chart_style.ORANGE), strict=True))


def draw(rows, lines, whole):
    """Draw the speedup of each technique in each of WAYS, points with intervals."""
    last = f"{whole.partition('+')[0]} with all" if "+" in whole else whole
    head = f"Does the order matter? Each technique alone, in the ladder, and last in {last}"
    series = [
        Series(label, list(lines[way]), {"marker": MARKERS[way], "color": COLOURS[way]}, line)
        for line, (way, label) in enumerate(WAYS.items())
    ]
    xlabel = "step time without / with the technique (x)"
    head = head, selection.describe(rows)
    figure, _ = interval_rows.forest(list(lines.index), series, head, xlabel)
    return figure
