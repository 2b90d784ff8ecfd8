"""Figures for pages and charts: measured, forecast and published ones, as tables."""

import tomllib

import numpy as np
import pandas as pd

from tools.forecast import gpus
from Utils.analysis import text_tables
from Utils.analysis.intervals import Ratio
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.text import broken
from Utils.results import rows_file, study
from Utils.scripts import ladder

DOCS = paths.ROOT / "docs"
EXPECTED = {  # GPUs in the README's forecast, by their names in docs/forecast.csv
    "t4": "T4 (float16)",
    "rtx3050": "RTX 3050",
    "rtx4090": "RTX 4090",
    "a100": "A100",
    "h100": "H100",
}
LAST = "fused_optimizer"  # the script that is compared with the baseline
TOKENS = 10e9  # the number that build-nanogpt trains on
SHOWN = {  # scripts in the chart of GPUs
    "tensorFloat32": "TF32",
    "brainFloat16": "bfloat16",
    "torch_compile": "torch.compile",
    "flash_attention": "FlashAttention",
    "fused_optimizer": "fused AdamW",
    "8bit_optimizer": "8-bit AdamW",
}


def ladder_of(path):
    """Return the Summary of the newest ladder in a results file."""
    return summarize(study.newest_ladder(rows_file.read(path), path))


def forecasts():
    """Return the rows of docs/forecast.csv with GPT-2 at the usual batch of each device.

    That is the largest power of two at which the baseline fits, up to 16.
    """
    rows = pd.read_csv(DOCS / "forecast.csv").query("model == 'gpt2' and batch_size > 0")
    largest = rows[rows.technique == ladder.BASELINE].groupby("device").largest_batch.first()
    usual = np.exp2(np.log2(largest).astype(int)).clip(upper=16)
    rows = rows[rows.batch_size == rows.device.map(usual)]
    return rows.astype({"batch_size": int, "seq_len": int})


def forecast_error():
    """Return (number of published speedups of one change, error that 90% of forecasts are within).

    The error is a share. Forecasts are without figures of the same source.
    """
    check = pd.read_csv(DOCS / "forecast_check.csv")
    deviations = np.log(check.forecast_ms / check.measured_ms)
    ladders = deviations.groupby([check[name] for name in ("source", "key", "model", "batch")])
    deviations_of_changes = ladders.diff().dropna()
    errors = np.expm1(-deviations_of_changes).abs()
    return len(errors), errors.quantile(0.9)


def blind_figures():
    """Return two tables of docs/forecast_blind.csv: each figure's first forecast, and its last."""
    rows = pd.read_csv(DOCS / "forecast_blind.csv")
    keys = ["source", "key", "model", "technique", "batch", "tokens"]
    figures = rows.groupby(keys, sort=False, as_index=False)
    return figures.first(), figures.last()


def errors():
    """Return a table of the errors of forecasts: without the figure's source, and blind."""
    check = pd.read_csv(DOCS / "forecast_check.csv")
    first, _ = blind_figures()
    is_amd = first.key.map(lambda key: bool(gpus.datasheet_by_key(key).architecture))
    parts = {
        "NVIDIA": check,
        "of these GPT-2 124M": check[check.model.str.startswith("GPT-2")],
        "NVIDIA, blind": first[~is_amd],
        "AMD, blind": first[is_amd],
    }

    table = {
        "figures": list(parts),
        "number": [],
        "median error": [],
        "90% within": [],
        "in their range": [],
    }
    for rows in parts.values():
        errors = (rows.forecast_ms / rows.measured_ms - 1).abs()
        in_range = rows.measured_ms.between(rows.low_ms, rows.high_ms)
        table["number"].append(str(len(rows)))
        table["median error"].append(f"{errors.quantile(0.5):.1%}")
        table["90% within"].append(f"{errors.quantile(0.9):.1%}")
        table["in their range"].append(f"{in_range.mean():.0%}")
    return text_tables.markdown(table, ["figures"])


def blind():
    """Return a table of figures without influence on the constants: first and last forecast."""
    first, last = blind_figures()
    shapes = first.batch.astype(str) + "x" + first.tokens.astype(str)
    names = first.key + ", " + first.model + " " + shapes + ": " + first.technique
    columns = {"figure": names, "measured ms": first.measured_ms.map("{:,.1f}".format)}
    for title, rows in {"first forecast": first, "last": last}.items():
        error = (rows.forecast_ms / rows.measured_ms - 1).map("{:+.1%}".format)
        columns[title] = error + " (" + rows.commit + ")"
    return text_tables.markdown({name: [*cells] for name, cells in columns.items()}, ["figure"])


def expected():
    """Return a sentence on the error of forecasts, and a table of speed and cost by GPU."""
    count, within = forecast_error()
    words = (
        f"**Forecast, not measured**, from datasheets. Of {count} known speedups of one change, "
        f"nine in ten were forecast within {within:.0%}, without figures of the same source "
        "([each](docs/FORECAST.md))."
    )

    rows = forecasts().set_index(["technique", "device"])
    rows = rows.rename(index={value: name for name, value in ladder.FLOAT16.items()})
    baseline = rows.loc[ladder.BASELINE].loc[[*EXPECTED]]
    last = rows.loc[LAST].loc[[*EXPECTED]]

    shapes = baseline.batch_size.astype(str) + "x" + baseline.seq_len.astype(str)
    columns = {
        "GPU, tokens a step": baseline.index.map(EXPECTED) + ", " + shapes,
        "baseline, tokens/s": baseline.tokens_per_second.map("{:,.0f}".format),
        f"{broken(LAST)}, tokens/s": last.tokens_per_second.map("{:,.0f}".format),
        "speedup (90% range)": map(Ratio, last.speedup, last.speedup_low, last.speedup_high),
        "10B tokens: baseline": _cost(baseline),
        broken(LAST): _cost(last),
    }
    texts = {title: [*map(str, values)] for title, values in columns.items()}
    return f"{words}\n\n{text_tables.markdown(texts, ['GPU, tokens a step'])}"


def _cost(rows):
    """Return the hours that TOKENS take on each GPU, and the dollars if it has a price."""
    prices = tomllib.loads((DOCS / "prices.toml").read_text())
    prices = pd.Series(prices).reindex(rows.index).astype(float)
    hours = TOKENS / rows.tokens_per_second / 3600
    dollars = (prices * hours).map(", ${:,.0f}".format)
    return hours.map("{:,.0f} h".format) + dollars.where(prices.notna(), "")


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
            over_baseline = Ratio(row.speedup, row.speedup_low, row.speedup_high)
            ratio = over_baseline.times(1 / by_device.speedup[device, parent])
            text = f"{ratio} on {EXPECTED[device]}"
            changes.append({"script": script, "device": device, "ratio": ratio, "text": text})
    return pd.DataFrame(changes)


def kernels():
    """Return the table of docs/kernels.csv, a forecast step, and its rate at the peaks."""
    table = pd.read_csv(DOCS / "kernels.csv", keep_default_na=False)
    rate = (1e3 * table.pop("tokens") / table.at_peak_ms).iloc[-1].round(-3)
    for name in table.select_dtypes("float"):
        form = "{:.0%}" if name.startswith("of_peak") else "{:.2f}"
        table[name] = table[name].map(form.format)
    texts = {title.replace("_", " "): [*map(str, cells)] for title, cells in table.items()}
    limit = f"At the datasheet's peaks, one kernel after the other: {rate:,.0f} tokens/s."
    return f"{text_tables.markdown(texts, ['kind', 'bound'])}\n\n{limit}"


def table_of(name):
    """Return the table of a file in docs/. Its first column is text."""
    table = pd.read_csv(DOCS / name, dtype=str)
    texts = {title.replace("_", " "): list(cells) for title, cells in table.items()}
    return text_tables.markdown(texts, [*texts][:1])
