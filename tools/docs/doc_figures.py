"""Figures for pages and charts: measured, forecast and published ones, as tables.

It imports no torch.
"""

import numpy as np
import pandas as pd

from tools.forecast import forecast_errors, gpus, stored_forecast
from Utils.analysis import text_tables
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.results import rows_file, selection, study
from Utils.scripts import ladder

DOCS = paths.ROOT / "docs"
EXPECTED = {  # GPUs with forecast changes, by their names in docs/forecast.csv
    "t4": "T4 (float16)",
    "rtx3050": "RTX 3050",
    "rtx4090": "RTX 4090",
    "a100": "A100",
    "h100": "H100",
}
MEASURED_BY_OTHERS = ("l4", "rtx5090", "a100", "h100", "b200")  # GPUs in the README's forecast
LAST = "fused_optimizer"  # the script that is compared with the baseline
SHOWN = {  # scripts in the chart of GPUs
    "tensorFloat32": "TF32",
    "brainFloat16": "bfloat16",
    "torch_compile": "torch.compile",
    "flash_attention": "FlashAttention",
    "fused_optimizer": "fused AdamW",
    "8bit_optimizer": "8-bit AdamW",
}


def ladder_of(path):
    """Return the Summary of a results file that `make table` shows."""
    return summarize(study.choose(rows_file.read(path), path))


def sources():
    """Return what the sentences of pages take figures from, by name.

    The figures of each folder of results/, and of rows in docs/; virtual_gpu, the rows of an H100
    with GPT-2 at 16x1024; published, the speedups by script and name.
    """
    files = {path.parent.parent.name: path for path in selection.shared_files()}
    files |= {name: DOCS / f"{name}.csv" for name in ("emulated_bfloat16", "zen4")}
    virtual_gpu = pd.read_csv(DOCS / "virtual_gpu.csv", index_col="technique")
    return {
        **{name: ladder_of(path).scripts for name, path in files.items()},
        "virtual_gpu": virtual_gpu.query("profile == 'h100' and model == 'gpt2'"),
        "published": published_changes().set_index(["script", "name"]).ratio,
    }


def forecasts():
    """Return the rows of docs/forecast.csv with GPT-2 at the usual batch of each device.

    That is the largest power of two at which the baseline fits, up to 16.
    """
    rows = pd.read_csv(stored_forecast.FILE).query("model == 'gpt2' and batch_size > 0")
    largest = rows[rows.technique == ladder.BASELINE].groupby("device").largest_batch.first()
    usual = np.exp2(np.log2(largest).astype(int)).clip(upper=16)
    rows = rows[rows.batch_size == rows.device.map(usual)]
    return rows.astype({"batch_size": int, "seq_len": int})


def measured_by_others(shown=None):
    """Return a table of blind figures in tokens/s: measured by others, and first forecast.

    shown: devices to show at their largest batch, by default all rows.
    """
    rows = forecast_errors.blind_rows().query("apart == ''")
    if shown:
        rows = rows.drop_duplicates("key", keep="last").set_index("key", drop=False).loc[[*shown]]

    names = rows.key.map(lambda key: gpus.datasheet_by_key(key).names[-1].removeprefix("NVIDIA "))
    step_tokens = rows.microbatches * rows.batch * rows.tokens
    shapes = rows.microbatches.map("{} x ".format) + rows.batch.astype(str) + "x"
    times = rows[["measured_ms", "forecast_ms", "low_ms", "high_ms"]]
    rates = times.rdiv(1e3 * step_tokens, axis=0).map("{:,.0f}".format)
    ranges = " (" + rates.high_ms + "-" + rates.low_ms + ")"
    columns = {
        "GPU": names,
        "tokens a step": shapes + rows.tokens.astype(str),
        "measured by others, tokens/s": rates.measured_ms,
        "our forecast (90% range)": rates.forecast_ms + ranges,
        "error of the step": rows.error.map("{:+.0%}".format),
    }
    return text_tables.markdown(columns, ["GPU"])


def ours_before():
    """Return a table of our measured scripts beside their first forecasts."""
    rows = forecast_errors.blind_rows().query("source.str.startswith('results/')")
    columns = {
        "script": rows.technique,
        "measured ms": rows.measured_ms.map("{:.1f}".format),
        "forecast ms": rows.forecast_ms.map("{:.1f}".format),
        "error": rows.error.map("{:+.1%}".format),
    }
    return text_tables.markdown(columns, ["script"])


def expected():
    """Return sentences on the error of forecasts, and a table of GPUs measured by others."""
    return f"{forecast_errors.in_words()}\n\n{measured_by_others(MEASURED_BY_OTHERS)}"


def published_changes():
    """Return docs/published_changes.csv with more columns: ratio, url and text.

    ratio: the speedup, by figures of docs/published.csv. url: its source. text: both, as Markdown.
    """
    keys = ["source", "metric", "technique"]
    figures = pd.read_csv(DOCS / "published.csv").drop_duplicates(keys).set_index(keys)
    changes = pd.read_csv(DOCS / "published_changes.csv")

    def figures_of(column):
        names = changes[["source", "metric", column]]
        return figures.loc[pd.MultiIndex.from_frame(names)].reset_index()

    # A figure is a time or a rate.
    before = figures_of("before")
    after = figures_of("after")
    is_time = after.unit == "ms"
    ratio = (before.value / after.value).where(is_time, after.value / before.value)

    url = after.url.str.partition(" ")[0]
    links = " ([" + changes.name + "](" + url + "))"
    text = ratio.map("{:.2f}x on ".format) + changes.gpu + links
    return changes.assign(ratio=ratio, url=url, text=text)


def forecast_changes():
    """Return the forecast speedups over the script before on each of EXPECTED, a DataFrame."""
    by_device = forecasts().set_index(["device", "technique"])
    ladder_scripts = {*SHOWN, *ladder.FLOAT16.values()}
    changes = []
    for (device, script), row in by_device.loc[[*EXPECTED]].iterrows():
        parent = ladder.get(script).parent
        if parent and script in ladder_scripts:
            ends = row[["speedup", "speedup_low", "speedup_high"]]
            ratio = Ratio(*ends / by_device.speedup[device, parent])
            changes.append({"script": script, "text": f"{ratio} on {EXPECTED[device]}"})
    return pd.DataFrame(changes)


def table_of(name):
    """Return the table of a file in docs/. Its first column is text."""
    table = pd.read_csv(DOCS / name, dtype=str)
    table.columns = table.columns.str.replace("_", " ")
    return text_tables.markdown(table, table.columns[:1])
