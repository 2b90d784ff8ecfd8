"""docs/gpus.png: the speedup of each change on several GPUs."""

from tools.docs.doc_figures import (
    EXPECTED,
    SHOWN,
    forecast_changes,
    ladder_of,
    published_changes,
)
from Utils.analysis.intervals import Ratio
from Utils.draw import chart_style, ratio_charts
from Utils.results import selection


def draw():
    """Draw the ratios over the script before, of GPUs and of our CPU.

    Published ones are filled, forecasts hollow with their ranges, ours crosses. GeForce cards are
    orange, other GPUs blue, CPUs grey.
    """
    published = published_changes()
    published = published[published.script.isin(SHOWN)]
    sources = published.groupby(["gpu", "source"], sort=False)
    series = []
    for marker, ((gpu, _), rows) in zip("os^vD<>*", sources, strict=False):
        ratios = rows.set_index("script").ratio.map(Ratio)
        source = rows.name.iloc[0].partition(",")[0]
        series.append(_series(f"{gpu}, {source}", gpu, ratios, marker, mec="white", ms=8))

    for path in selection.shared_files():
        summary = ladder_of(path)
        rows = summary.study.rows
        figures = summary.figures
        is_shown = figures.index.isin(SHOWN) & figures.parent_speedup.map(bool)
        ratios = figures.parent_speedup[is_shown]
        if len(ratios) > len(SHOWN) / 2:
            gpu = rows.device.iloc[0] if selection.is_of_gpu(path) else ""
            series.append(_series(f"{gpu or 'our CPU'}, measured by us", gpu, ratios, "X", ms=9))

    forecast_ratios = forecast_changes().set_index(["device", "script"]).ratio
    markers = {"rtx4090": "^", "a100": "o", "h100": "D"}
    for line, (device, marker) in enumerate(markers.items(), start=1):
        gpu = EXPECTED[device]
        ratios = forecast_ratios[device]
        series.append(_series(f"{gpu}, forecast", gpu, ratios, marker, line, mfc="white"))

    meaning = (
        "filled: published, of other code, batches and models; hollow: our forecast and its range "
        "of 90%; cross: measured by us. 8-bit AdamW is over FlashAttention."
    )
    head = "How much faster depends on your GPU", meaning
    figure, axes = ratio_charts.forest(
        list(SHOWN.values()),
        series,
        head,
        "",
        values=False,
        width=5.6,  # inches: letters are 8 pixels high on a phone
    )
    axes.set_xlabel("speedup over the script before")
    axes.get_legend().remove()
    figure.legend(
        loc="upper left",
        bbox_to_anchor=(-0.15, 0),  # below the chart
        ncol=2,
        fontsize="small",
        frameon=False,
        columnspacing=0.5,
        handletextpad=0,
    )
    return figure


def _series(label, gpu, ratios, marker, line=0, ms=6, **style):
    """Return the Series of a GPU, or of a CPU with gpu "", in the order of SHOWN."""
    colour = chart_style.BLUE if gpu else chart_style.GREY
    if "RTX" in gpu:
        colour = chart_style.ORANGE
    ratios = ratios.reindex([*SHOWN], fill_value=Ratio())
    style = {"color": colour, "marker": marker, "ms": ms, **style}
    return ratio_charts.Series(label, list(ratios), style, line)
