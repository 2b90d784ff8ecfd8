"""The chart of several devices side by side."""

import textwrap

import numpy as np

from Utils.analysis import result_tables
from Utils.analysis.intervals import NO_INTERVAL, numbers, verdicts
from Utils.base.text import plural
from Utils.draw import chart_style
from Utils.scripts import ladder

TICKS = (0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32)


def draw(panels, left_out=()):
    """Draw one panel a device, techniques in the same rows of all: speedups over the device's own
    baseline with their intervals, and above them what the best reaches."""
    shown = {name for panel in panels for name in panel["lines"].index} - {
        panel["lines"].base.iloc[0] for panel in panels
    }
    known = ladder.techniques()
    names = [*(name for name in known if name in shown), *sorted(shown - {*known})]
    width, height = 3 + 3.6 * len(panels), 2.4 + 0.42 * len(names)
    figure, grid = chart_style.panels(1, len(panels), height, width)
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, panel, names)
    values = np.concatenate([numbers(panel["lines"].speedup) for panel in panels])
    ends = [1, *values[np.isfinite(values)]]
    low, high = min(ends) / 1.1, max(ends) * (max(ends) / min(ends)) ** 0.25 * 1.1
    for axes in grid:
        axes.set(xscale="log", xlim=(low, high))
        chart_style.ratio_ticks(axes, TICKS)
        chart_style.name_rows(axes, names, top=-0.5)
    intervals = any(numbers(panel["lines"].speedup).low.notna().any() for panel in panels)
    spread = "line: 95% interval over its clean rounds" if intervals else NO_INTERVAL
    model, batch, seq_len = panels[0]["shape"]
    notes = [f"speedup over the device's own baseline, {model} {batch}x{seq_len}; {spread}"]
    notes += [f"left out: {text}" for text in left_out]
    notes = [
        line for text in notes for line in textwrap.wrap(chart_style.plain(text), int(12 * width))
    ]
    figure.suptitle("Devices side by side", x=0.01, ha="left", fontweight="bold")
    figure.supxlabel("\n".join(notes), fontsize="small", color="0.3", x=0.01, ha="left")
    figure.tight_layout()
    return figure


def _draw_panel(axes, panel, names):
    lines, colours = panel["lines"], chart_style.colours()
    worse = verdicts(lines.loss_difference).isin(("worse", "diverged"))
    same = lines[lines.parity.ne("model changed") & ~worse]
    best = same.tokens_per_second.idxmax()
    title = textwrap.wrap(chart_style.plain(panel["device"]), 34)
    facts = [
        f"torch {panel['torch']}, commit {panel['commit'] or 'unknown'}, "
        f"{plural(panel['rounds'], 'round')}",
        f"best: {best}",
        f"{lines.tokens_per_second[best]:,.0f} tokens/s",
    ]
    axes.set_title("\n".join(title), loc="left", fontweight="bold", pad=52)
    how = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(
        chart_style.plain("\n".join(facts)), (0, 1), (0, 6), size="small", color="0.3", **how
    )
    axes.axvline(1, color="0.3", lw=1, zorder=1)
    for y, name in enumerate(names):
        line = lines.loc[name] if name in lines.index else None
        if line is None or not line.speedup:
            why = "not run" if line is None else result_tables.reason(line)
            why = chart_style.plain(textwrap.shorten(why, 40, placeholder=" ..."))
            how = {"ha": "left", "size": "x-small", "color": chart_style.GREY}
            chart_style.beside(axes, 0.02, y, why, bbox={"fc": "white", "lw": 0, "pad": 1}, **how)
            continue
        colour = colours.get(name, chart_style.GREY)
        ratio = line.speedup
        axes.plot([ratio.low, ratio.high], [y, y], color=colour, lw=2, zorder=2)
        axes.plot(ratio.value, y, "o", color=colour, ms=7, zorder=3)
        right = np.nanmax([ratio.value, ratio.high])
        how = {"textcoords": "offset points", "va": "center", "size": "small"}
        axes.annotate(ratio.text, (right, y), (6, 0), **how)
