"""docs/ladder.png: tokens per second of each script of the ladder, on the newest GPU."""

from tools.docs.doc_figures import SHOWN, ladder_of
from Utils.draw import chart_style
from Utils.results import selection
from Utils.scripts.ladder import BASELINE

LABELS = {BASELINE: "plain float32", **SHOWN}
LINE, BRANCH = -0.07, -0.03  # the graph beside the bars, as fractions of the axes' width
ROOM = 0.5  # share of the longest bar that has room for text
TEXT = {"va": "center", "size": "small", **chart_style.POINTS}
MARGIN = {"x": 1.02, "ha": "left", "size": "small"}


def draw():
    """Draw a bar a script, with its speedup on it, memory and loss in the margin.

    A graph beside the bars shows what each script extends; a branch has another colour.
    """
    summary = ladder_of(selection.newest_shared())
    rows = summary.study.rows
    scripts = [script for script in summary.shown if script.name in LABELS]
    names = [script.name for script in scripts]
    in_line = [script for script in scripts if not script.branches_from]
    rates = [script.tokens_per_second / 1e3 for script in scripts]
    slow = rates[0]
    fast = in_line[-1].tokens_per_second / 1e3
    figure, (axes,) = chart_style.figure(
        0.45 * len(names),
        f"{rows.device.iloc[0]}: {slow:.0f} to {fast:.0f} thousand tokens/s in "
        f"{len(in_line) - 1} changes",
        "On a bar: speedup over the bar above, with its 95% interval over rounds",
        selection.description(rows),
        width=5.2,  # inches: letters are 8 pixels high on a phone
    )
    chart_style.beside(axes, y=-0.75, text="peak memory, loss", **MARGIN)

    for y, (script, rate) in enumerate(zip(scripts, rates, strict=True)):
        x, colour = LINE, chart_style.BLUE
        ratio = f"{script.parent_speedup}"
        if script.branches_from:
            x, colour = BRANCH, chart_style.RED
            ratio += f" over {LABELS[script.parent]}"
        above = names.index(script.parent) if script.parent in names else y
        axes.plot(
            [LINE, x],
            [above, y],
            color=colour,
            marker="o",
            markevery=[1],
            clip_on=False,
            transform=axes.get_yaxis_transform(),
        )

        axes.barh(y, rate, color=colour)
        axes.annotate(f"{rate:.0f}", (rate, y), (6, 0), weight="bold", **TEXT)
        inside = {"ha": "right", "color": "white"} if rate > ROOM * fast else {}
        axes.annotate(ratio, (rate, y), (-6 if inside else 36, 0), **TEXT, **inside)
        text = f"{script.peak_memory_mib / 1024:.1f} GiB, {script.loss:.3f}"
        chart_style.beside(axes, y=y, text=text, **MARGIN)

    chart_style.name_rows(axes, [LABELS[name] for name in names])
    axes.tick_params(axis="y", pad=28)
    axes.set_xlim(0, 1.12 * max(rates))
    axes.set_xlabel("thousand tokens per second")
    return figure
