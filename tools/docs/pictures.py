"""The pictures of docs/: ladder.png, the ladder on the newest GPU; gpus.png, changes by GPU."""

from tools.docs.doc_figures import SHOWN, ladder_of, published_changes
from Utils.analysis.intervals import Ratio
from Utils.draw import chart_style, ratio_charts
from Utils.results import selection
from Utils.scripts.ladder import BASELINE
from Utils.scripts.precisions import FLOAT16

# ladder.png
LABELS = {BASELINE: "plain float32", **SHOWN}
LABELS |= {new: SHOWN[old].replace("bfloat", "float") for old, new in FLOAT16.items()}
LINE, BRANCH = -0.07, -0.03  # the graph beside the bars, as fractions of the axes' width
ROOM = 0.5  # share of the longest bar that has room for text
TEXT = {"va": "center", "size": "small", **chart_style.POINTS}
MARGIN = {"x": 1.02, "ha": "left", "size": "small"}

# gpus.png
FEWEST = 4  # changes of a series that is drawn
COLOURS = {  # by a part of the label; the first that it has
    "H200": chart_style.BLUE,
    "A100": chart_style.RED,
    "RTX": chart_style.ORANGE,
    "": chart_style.GREY,
}


def ladder():
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
        above = names.index(script.parent or script.name)
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


def gpus():
    """Draw the ratios over the script before, a line for each GPU and source.

    Ours are crosses with intervals, published ones circles and squares.
    """
    # Measured by us
    ratios_by_label = {}
    for path in selection.shared_files():
        summary = ladder_of(path)
        device = summary.study.rows.device.iloc[0].removeprefix("NVIDIA ")
        name = device if selection.is_of_gpu(path) else "CPU"
        ratios_by_label[f"{name}, measured by us"] = {
            script.name: script.parent_speedup
            for script in summary.shown
            if script.name in SHOWN and script.parent_speedup
        }

    # Published
    published = published_changes()
    published = published[published.script.isin(SHOWN)]
    for (gpu, _), rows in published.groupby(["gpu", "source"], sort=False):
        source = rows.name.iloc[0].partition(",")[0]
        ratios_by_label[f"{gpu}, {source}"] = dict(rows.set_index("script").ratio.map(Ratio))

    # A line for each with enough changes, GPUs first
    series = []
    for label in sorted(ratios_by_label, key=lambda label: label.startswith("CPU")):
        by_script = ratios_by_label[label]
        if len(by_script) >= FEWEST:
            line = len(series)
            colour = next(colour for gpu, colour in COLOURS.items() if gpu in label)
            marker = "X" if "by us" in label else "os"[line % 2]
            ratios = [by_script.get(name, Ratio()) for name in SHOWN]
            style = {"color": colour, "marker": marker, "ms": 7}
            series.append(ratio_charts.Series(label, ratios, style, line))

    meaning = (
        "crosses: measured by us; circles and squares: published, of other code, batches and "
        "models. 8-bit AdamW is over FlashAttention."
    )
    figure, axes = ratio_charts.forest(
        list(SHOWN.values()),
        series,
        ("How much faster depends on your GPU", meaning),
        "",
        values=False,
        width=5.6,  # inches: letters are 8 pixels high on a phone
    )
    axes.set_xlabel("speedup over the script before")
    axes.get_legend().remove()
    axes.legend(loc="lower right", fontsize="small", handletextpad=0)  # a corner without marks
    return figure
