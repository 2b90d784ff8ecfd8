"""The chart of several devices side by side."""

import itertools
import textwrap

from Utils.analysis import result_tables
from Utils.analysis.intervals import verdicts
from Utils.base.text import plural
from Utils.draw import chart_style, interval_rows
from Utils.scripts import ladder


def draw(panels, left_out=()):
    """Draw one panel a device, techniques in the same rows of all: speedups over the device's own
    baseline with their intervals, and above them what the best reaches."""
    names = _names(panels)
    width = 3 + 3.6 * len(panels)
    figure, grid = chart_style.panels(1, len(panels), 2.4 + 0.42 * len(names), width)
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, names)
    ratios = list(itertools.chain.from_iterable(panel["lines"].speedup for panel in panels))
    for axes in grid:
        interval_rows.logarithmic(axes, ratios, room=0.3)
        chart_style.name_rows(axes, names, top=-0.5)
    spread = interval_rows.spread(ratios, "line: 95% interval over its clean rounds")
    model, batch, seq_len = panels[0]["shape"]
    notes = [f"speedup over the device's own baseline, {model} {batch}x{seq_len}; {spread}"]
    notes += [f"left out: {text}" for text in left_out]
    notes = [line for text in notes for line in chart_style.wrapped(text, int(12 * width))]
    figure.suptitle("Devices side by side", x=0.01, ha="left", fontweight="bold")
    figure.supxlabel("\n".join(notes), fontsize="small", color="0.3", x=0.01, ha="left")
    figure.tight_layout()
    return figure


def _names(panels):
    """Return the techniques of the panels without the baselines, those with scripts first."""
    names = set().union(*(panel["lines"].index for panel in panels))
    names -= {panel["lines"].base.iloc[0] for panel in panels}
    with_scripts = [name for name in ladder.techniques() if name in names]
    return with_scripts + sorted(names - {*with_scripts})


def _draw_panel(axes, panel, names):
    lines = panel["lines"]
    worse = verdicts(lines.loss_difference).isin(("worse", "diverged"))
    same = lines[lines.parity.ne("model changed") & ~worse]
    best = same.tokens_per_second.idxmax()
    facts = [
        f"torch {panel['torch']}, commit {panel['commit'] or 'unknown'}, "
        f"{plural(panel['rounds'], 'round')}",
        f"best: {best}",
        f"{lines.tokens_per_second[best]:,.0f} tokens/s",
    ]
    title = "\n".join(chart_style.wrapped(panel["device"], 34))
    axes.set_title(title, loc="left", fontweight="bold", pad=52)
    small = {"size": "small", "color": "0.3", "va": "bottom"}
    axes.annotate("\n".join(facts), (0, 1), (0, 6), "axes fraction", **small, **chart_style.POINTS)
    interval_rows.mark_one(axes)
    for y, name in enumerate(names):
        line = lines.loc[name] if name in lines.index else None
        if line is not None and line.speedup:
            colour = chart_style.colour(name)
            interval_rows.point(axes, y, line.speedup, colour, text={"size": "small"})
        else:
            why = "not run" if line is None else result_tables.reason(line)
            why = textwrap.shorten(why, 40, placeholder=" ...")
            chart_style.no_value(axes, y, why, size="x-small")
