"""The chart of what each technique is worth on GPUs: published figures, forecasts, our own rows."""

from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.draw import chart_style, doc_pages, ratio_charts
from Utils.draw.ratio_charts import Series
from Utils.results import records_file, rows_file, selection, shared_folders

WIDTH = 5.6  # inches: so that letters are 8 pixels high on a phone
NAMES = {
    "tensorFloat32": "TF32",
    "brainFloat16": "bfloat16",
    "torch_compile": "torch.compile",
    "flash_attention": "FlashAttention",
    "fused_optimizer": "fused AdamW",
    "8bit_optimizer": "8-bit AdamW",
}
MARKERS = "os^vD<>*"  # one a published source
FORECAST = {"rtx4090": "^", "a100": "o", "h100": "D"}


def draw():
    """Draw the ratios over the script before: published ones filled, forecasts hollow with their
    ranges, ours as crosses. GeForce cards are orange, other GPUs blue, CPUs grey."""
    published = doc_pages.published_changes()
    published = published[published.script.isin(NAMES)]
    sources = published.groupby(["gpu", "source"], sort=False)
    series = []
    for marker, ((gpu, _), rows) in zip(MARKERS, sources, strict=False):
        ratios = rows.set_index("script").ratio.map(Ratio)
        source = rows.name.iloc[0].partition(",")[0]
        series.append(_series(f"{gpu}, {source}", gpu, ratios, marker, mec="white", ms=8))
    series += _ours()
    forecasts = doc_pages.forecast_changes().set_index(["device", "script"]).ratio
    for line, (device, marker) in enumerate(FORECAST.items(), start=1):
        gpu = doc_pages.EXPECTED[device]
        look = {"line": line, "mfc": "white"}
        series.append(_series(f"{gpu}, forecast", gpu, forecasts[device], marker, **look))
    meaning = (
        "filled: published, of other code, batches and models; hollow: our forecast and its range "
        "of 90%; cross: measured by us. 8-bit AdamW is over FlashAttention."
    )
    head = "How much faster depends on your GPU", meaning
    xlabel = "speedup over the script before"
    names = list(NAMES.values())
    figure, axes = ratio_charts.forest(names, series, head, xlabel, values=False, width=WIDTH)
    axes.set_xlabel(xlabel)
    below = {"loc": "upper left", "bbox_to_anchor": (-0.15, 0), "ncol": 2, "fontsize": "small"}
    axes.get_legend().remove()
    figure.legend(**below, frameon=False, columnspacing=0.5, handletextpad=0)
    return figure


def write():
    """Write the chart to docs/gpus.png."""
    look = {"dpi": 110, "bbox_inches": "tight", "metadata": {"Software": None}}
    draw().savefig(doc_pages.DOCS / "gpus.png", **look)


def _ours():
    """Return a Series for each device of results/ on which most of the techniques were measured."""
    series = []
    for path in shared_folders.files():
        rows, _ = selection.select_ladder(rows_file.read(path))
        lines = summarize(rows, records_file.read(path, rows.run_id.unique()))
        ratios = lines.parent_speedup[lines.index.isin(NAMES) & lines.parent_speedup.map(bool)]
        if len(ratios) > len(NAMES) / 2:
            device = rows.device.iloc[0]
            gpu = device if shared_folders.is_of_gpu(path) else ""
            series.append(_series(f"{gpu or 'our CPU'}, measured by us", gpu, ratios, "X"))
    return series


def _series(label, gpu, ratios, marker, line=0, **look):
    colour = chart_style.BLUE if gpu else chart_style.GREY
    if "RTX" in gpu:
        colour = chart_style.ORANGE
    ratios = ratios.reindex([*NAMES], fill_value=Ratio())
    look = {"color": colour, "marker": marker, "ms": 6} | look
    return Series(label, list(ratios), look, line)
