"""The picture docs/gpus.png: what changes gain, by GPU."""

from tools.docs.doc_figures import SHOWN, ladder_of, published_changes
from Utils.analysis.intervals import Ratio
from Utils.draw import chart_style, ratio_charts
from Utils.results import selection

FEWEST = 4  # changes of a series that is drawn
COLOURS = {  # by a part of the label; the first that it has
    "H200": chart_style.BLUE,
    "A100": chart_style.RED,
    "RTX": chart_style.ORANGE,
    "": chart_style.GREY,
}


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
            style = {"color": colour, "marker": marker}
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
        width=5.6,  # inches: letters are 8 pixels high on a phone
    )
    axes.set_xlabel("speedup over the script before")
    axes.legend(loc="lower right", fontsize="small", handletextpad=0)  # a corner without marks
    return figure
