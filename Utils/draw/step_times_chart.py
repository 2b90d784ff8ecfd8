"""The chart of step times as small multiples."""

from matplotlib.ticker import LogLocator, MaxNLocator

from Utils.analysis import round_levels
from Utils.draw import chart_labels, chart_style
from Utils.results import selection


def draw(rows, lines):
    """Draw milliseconds a step over the steps, a panel a technique: the median of the rounds, a
    band from the fastest round to the slowest, and the script before as a dashed line."""
    lines = lines[lines.step_ms.notna()]
    times, _ = round_levels.by_step(rows, chart_style.STEPS)
    meaning = (
        "line: median of the rounds; band: all rounds; dashed: the script before; grey: warm-up"
    )
    head = "Time of each step", meaning, selection.describe(rows)
    labels = {"xlabel": "step", "ylabel": "step time (ms)"}
    figure, panels = chart_style.grid(len(lines), *head, **labels)
    _scale(panels[0], round_levels.scaled(selection.timed(rows)).step_ms)
    steps = times.index.get_level_values("step")
    panels[0].set_xlim(steps.min() - 0.5, steps.max() + 0.5)
    panels[0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axes, (name, line) in zip(panels, lines.iterrows(), strict=True):
        steps = times.loc[name]
        if line.parent in lines.index:
            before = times["median"].loc[line.parent]
            axes.plot(before.index, before, color="black", linestyle=(0, (2, 2)), linewidth=0.9)
        axes.plot(steps.index, steps["median"], color=chart_style.BLUE, linewidth=1.6)
        band = {"color": chart_style.BLUE, "alpha": 0.2, "lw": 0}
        axes.fill_between(steps.index, steps["min"], steps["max"], **band)
        axes.axvspan(steps.index.min() - 0.5, -0.5, color="0.9", zorder=0)
        axes.set_title(chart_labels.label(line), loc="left", fontsize="small", pad=3)
    return figure


def _scale(axes, step_ms):
    """Set the scale of all panels, which a hiccup does not stretch."""
    low, high = step_ms.quantile([0.01, 0.99])
    if chart_style.is_wide(low, high):
        axes.set(yscale="log", ylim=(low / 1.3, high * 1.4))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    else:
        axes.set_ylim(0, high * 1.2)
