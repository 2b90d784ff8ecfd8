"""The chart of strong and weak scaling."""

from Utils.analysis.intervals import numbers
from Utils.analysis.several_processes import KINDS
from Utils.draw import chart_style

COLOURS = {"strong": chart_style.BLUE, "weak": chart_style.ORANGE}
OFFSETS = {"strong": (8, -14), "weak": (8, 10)}  # of the text beside a marker, in points


def draw(efficiencies, described):
    """Draw tokens per second over those of the fewest processes, a line a kind, and the ideal."""
    figure, axes = chart_style.figure(5.5, "Strong and weak scaling", described)
    counts = sorted(efficiencies.processes.unique())
    ideal = [n / counts[0] for n in counts]
    axes.plot(counts, ideal, color=chart_style.GREY, linestyle="--", label="ideal")
    for kind, lines in efficiencies.groupby("scaling", sort=False):
        speedup = numbers(lines.speedup)
        errors = [speedup.value - speedup.low, speedup.high - speedup.value]
        errors = [side.fillna(0.0) for side in errors]
        look = {"color": COLOURS[kind], "marker": "o", "capsize": 4}
        look["label"] = f"{kind}: {KINDS[kind]}"
        axes.errorbar(lines.processes, speedup.value, yerr=errors, **look)
        look = {"color": COLOURS[kind], "size": "small", **chart_style.POINTS}
        for line in lines.iloc[1:].itertuples():
            point = line.processes, line.speedup.value
            axes.annotate(line.efficiency.text, point, OFFSETS[kind], **look)
    axes.set(xticks=counts, xlim=(counts[0] - 0.1 * counts[-1], counts[-1] * 1.1))
    axes.set_ylim(0, 1.4 * ideal[-1])  # an interval of few rounds can be longer than the chart
    axes.set_xlabel("processes (percent: efficiency; error bars: 95% interval over rounds)")
    axes.set_ylabel("tokens per second over those of the fewest processes")
    axes.legend(loc="upper left", frameon=False)
    return figure
