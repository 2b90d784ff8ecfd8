"""The chart of step times as lines."""

from matplotlib.ticker import LogLocator, MaxNLocator

from Utils.analysis import round_levels
from Utils.base.text import brief
from Utils.draw import chart_labels, chart_style
from Utils.results import selection
from Utils.scripts import bases

MOST_LINES = 10  # in one panel
LABELS = {"xlabel": "step (grey: warm-up)", "ylabel": "step time (ms)"}


def draw(rows, lines):
    """Draw milliseconds a step over the steps, a line a technique: the median of the rounds, and a
    band from the fastest round to the slowest. More than MOST_LINES get a panel each, beside the
    parent's line."""
    timed = lines.index[lines.step_ms.notna()]
    times, _ = round_levels.by_step(rows, chart_style.STEPS)
    if len(timed) > MOST_LINES:
        return _draw_panels(rows, lines.loc[timed], times)
    height = max(6, 0.3 * len(timed) + 0.8 * (len(lines) - len(timed)))  # of the legend
    figure, axes = chart_style.figure(height, "Time of each step", selection.describe(rows))
    for name in timed:
        label = chart_labels.label(lines.loc[name], tainted=True)
        style = chart_style.styles().get(bases.last(name), "-")
        _draw_line(axes, times, name, linestyle=style, label=label)
    _scale(axes, rows, lines)
    axes.set(**LABELS)
    for _, line in lines[lines.step_ms.isna()].iterrows():
        label = chart_style.wrapped(f"{line.label} ({brief(chart_labels.reason(line))})", 32)
        axes.plot([], [], color=chart_style.GREY, linestyle=":", label="\n".join(label))
    axes.legend(**chart_style.BESIDE)
    return figure


def _draw_panels(rows, lines, times):
    meaning = "colour: the technique, and a band over the rounds; black, dashed: its parent"
    described = "Time of each step", meaning, selection.describe(rows)
    figure, panels = chart_style.grid(len(lines), *described, **LABELS)
    for axes, (name, line) in zip(panels, lines.iterrows(), strict=True):
        if line.parent in lines.index:
            parent = times["median"].loc[line.parent]
            axes.plot(parent.index, parent, color="black", linestyle=(0, (2, 2)), linewidth=0.9)
        _draw_line(axes, times, name)
        _scale(axes, rows, lines)
        axes.set_title(chart_labels.label(line), loc="left", fontsize="small", pad=3)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if line.grade == "tainted":
            corner = {"transform": axes.transAxes, "ha": "right", "va": "top"}
            axes.text(0.97, 0.94, "tainted", fontsize="small", color="0.4", **corner)
    return figure


def _draw_line(axes, times, name, **look):
    steps = times.loc[name]
    colour = chart_style.colour(name)
    axes.plot(steps.index, steps["median"], color=colour, linewidth=1.6, **look)
    axes.fill_between(steps.index, steps["min"], steps["max"], color=colour, alpha=0.2, lw=0)


def _scale(axes, rows, lines):
    """Set both axes, and mark the warm-up."""
    axes.axvspan(-0.5, selection.warmup(rows) - 0.5, color="0.9", zorder=0)
    measured = round_levels.scaled(selection.timed(rows)).step_ms
    if len(measured):
        axes.set_xlim(-0.5, rows.step.max() + 0.5)
        if chart_style.is_wide(lines.step_ms.min(), lines.step_ms.max()):
            axes.set(yscale="log", ylim=(measured.min() / 1.2, measured.quantile(0.99) * 1.4))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        else:
            axes.set_ylim(0, measured.quantile(0.99) * 1.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
