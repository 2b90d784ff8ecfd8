"""The chart of step times as small multiples."""

from matplotlib.ticker import LogLocator, MaxNLocator

from Utils.analysis import intervals
from Utils.draw import chart_labels, chart_style
from Utils.results import selection

COLUMNS = 4  # of panels


def draw(rows, lines):
    """Draw milliseconds a step over the steps, a panel a technique: the median of the rounds, a
    band from the fastest round to the slowest, and the script before as a dashed line."""
    lines = lines[lines.step_ms.notna()]
    times, _ = intervals.by_step(rows, chart_style.STEPS)
    height = -(-len(lines) // COLUMNS)
    figure, panels = chart_style.panels(height, COLUMNS, 1.5 * height)
    figure.subplots_adjust(hspace=0.3, wspace=0.08)
    meaning = (
        "line: median of the rounds; band: all rounds; dashed: the script before; grey: warm-up"
    )
    described = meaning, selection.describe(rows)
    chart_style.head(panels[0], "Time of each step (ms)", described, room=16)
    _scale(panels[0], times, intervals.scaled(selection.timed(rows)).step_ms)
    for number, (name, line) in enumerate(lines.iterrows()):
        axes = panels[number]
        steps = times.loc[name]
        if line.parent in lines.index:
            before = times["median"].loc[line.parent]
            axes.plot(before.index, before, color="black", linestyle=(0, (2, 2)), linewidth=0.9)
        axes.plot(steps.index, steps["median"], color=chart_style.BLUE, linewidth=1.6)
        band = {"color": chart_style.BLUE, "alpha": 0.2, "lw": 0}
        axes.fill_between(steps.index, steps["min"], steps["max"], **band)
        axes.axvspan(steps.index.min() - 0.5, -0.5, color="0.9", zorder=0)
        axes.set_title(chart_labels.label(line), loc="left", fontsize="small", pad=3)
        axes.tick_params(labelsize="small", labelbottom=number + COLUMNS >= len(lines))
        axes.grid(False)
        axes.spines[["top", "right"]].set_visible(False)
    for unused in panels[len(lines) :]:
        unused.set_axis_off()
    return figure


def _scale(axes, times, step_ms):
    """Set the scales of all panels; a hiccup does not stretch that of the times."""
    steps = times.index.get_level_values("step")
    axes.set_xlim(steps.min() - 0.5, steps.max() + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    low, high = step_ms.quantile([0.01, 0.99])
    if chart_style.is_wide(low, high):
        axes.set(yscale="log", ylim=(low / 1.3, high * 1.4))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    else:
        axes.set_ylim(0, high * 1.2)
