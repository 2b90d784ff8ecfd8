"""The chart of several devices side by side."""

from Utils.analysis.intervals import Ratio
from Utils.base.text import plural
from Utils.draw import chart_style, interval_rows
from Utils.draw.interval_rows import Series
from Utils.scripts import ladder

MARKERS = "os^Dv"


def draw(panels, left_out=()):
    """Draw speedups over each device's own baseline with their intervals, a marker a device."""
    names = {name for panel in panels for name in panel["lines"].index}
    names = [name for name in ladder.techniques() if name in names and name != ladder.BASELINE]
    series = []
    for number, panel in enumerate(panels):
        speedups = panel["lines"].speedup.reindex(names, fill_value=Ratio())
        label = f"{panel['device']}, torch {panel['torch']}, {plural(panel['rounds'], 'round')}"
        label = "\n".join(chart_style.wrapped(label, 40))
        look = {"color": f"C{number}", "marker": MARKERS[number % len(MARKERS)]}
        series.append(Series(label, list(speedups), look, number))
    model, batch, seq_len = panels[0]["shape"]
    head = (
        "Devices side by side",
        f"speedup over the device's own baseline, {model} {batch}x{seq_len}",
    )
    xlabel = "step time of the baseline / step time (x)"
    figure, axes = interval_rows.forest(names, series, head, xlabel)
    chart_style.below(axes, "\n".join(f"left out: {text}" for text in left_out))
    return figure
