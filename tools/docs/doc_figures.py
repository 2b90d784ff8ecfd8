"""Figures for pages and charts: measured, forecast and published ones, as tables.

It imports no torch.
"""

import pandas as pd

from tools.forecast import forecast_errors, gpus
from Utils.analysis import text_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.results import rows_file, selection, study

DOCS = paths.ROOT / "docs"
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
    """Return the sources of figures in sentences of pages, by name.

    The figures of each folder of results/, and of rows in docs/; virtual_gpu, the rows of an H100
    with GPT-2 at 16x1024; published, the speedups by script and name; changes, the number of
    verdicts on changes of training scripts by what they are.
    """
    files = {path.parent.parent.name: path for path in selection.shared_files()}
    files |= {name: DOCS / f"{name}.csv" for name in ("emulated_bfloat16", "zen4")}
    virtual_gpu = pd.read_csv(DOCS / "virtual_gpu.csv", index_col="technique")
    changes = pd.read_csv(DOCS / "training_changes.csv")
    is_other = changes.folder.str.startswith("other").map({True: "other", False: "honest"})
    verdicts = changes.verdict.replace("identical|same.*", "same", regex=True)

    return {
        **{name: ladder_of(path).scripts for name, path in files.items()},
        "changes": pd.crosstab(is_other, verdicts, margins=True),
        "virtual_gpu": virtual_gpu.query("profile == 'h100' and model == 'gpt2'"),
        "published": published_changes().set_index(["script", "name"]).ratio,
    }


def measured_by_others(shown=None):
    """Return a table of blind figures in tokens/s: measured by others, and first forecast.

    shown: devices to show at their largest batch, by default all rows.
    """
    rows = forecast_errors.blind_rows().query("apart == ''")
    if shown:
        rows = rows.drop_duplicates("key", keep="last").set_index("key", drop=False).loc[[*shown]]

    lines = []
    for row in rows.itertuples():
        tokens = 1e3 * row.microbatches * row.batch * row.tokens
        ends = f"{tokens / row.high_ms:,.0f}-{tokens / row.low_ms:,.0f}"
        line = {
            "GPU": gpus.datasheet_by_key(row.key).names[-1].removeprefix("NVIDIA "),
            "tokens a step": f"{row.microbatches} x {row.batch}x{row.tokens}",
            "measured by others, tokens/s": f"{tokens / row.measured_ms:,.0f}",
            "our forecast (90% range)": f"{tokens / row.forecast_ms:,.0f} ({ends})",
            "error of the step": f"{row.error:+.0%}",
        }
        lines.append(line)
    return text_tables.markdown(pd.DataFrame(lines), ["GPU"])


def ours_before():
    """Return a table of our measured scripts beside their first forecasts."""
    rows = forecast_errors.blind_rows().query("source.str.startswith('results/')")
    lines = [
        {
            "script": row.technique,
            "measured ms": f"{row.measured_ms:.1f}",
            "forecast ms": f"{row.forecast_ms:.1f}",
            "error": f"{row.error:+.1%}",
        }
        for row in rows.itertuples()
    ]
    return text_tables.markdown(pd.DataFrame(lines))


def expected():
    """Return sentences on the error of forecasts, and a table of GPUs measured by others."""
    return f"{forecast_errors.in_words()}\n\n{measured_by_others(MEASURED_BY_OTHERS)}"


def published_changes():
    """Return docs/published_changes.csv with more columns: ratio, url and text.

    ratio: the speedup, by figures of docs/published.csv. url: its source. text: ratio and GPU.
    """
    keys = ["source", "metric", "technique"]
    figures = pd.read_csv(DOCS / "published.csv").drop_duplicates(keys).set_index(keys)

    lines = []
    for change in pd.read_csv(DOCS / "published_changes.csv").itertuples(index=False):
        before = figures.loc[change.source, change.metric, change.before]
        after = figures.loc[change.source, change.metric, change.after]
        is_time = after.unit == "ms"  # otherwise a rate
        ratio = before.value / after.value if is_time else after.value / before.value
        url = after.url.partition(" ")[0]
        text = f"{ratio:.2f}x on {change.gpu}"
        lines.append(change._asdict() | {"ratio": ratio, "url": url, "text": text})
    return pd.DataFrame(lines)


def table_of(name):
    """Return the table of a file in docs/. Its first column is text."""
    table = pd.read_csv(DOCS / name, dtype=str)
    table.columns = table.columns.str.replace("_", " ")
    return text_tables.markdown(table, table.columns[:1])
