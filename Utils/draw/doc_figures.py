"""Tables of forecasts, each from a file in docs/, which a command writes."""

import tomllib

import numpy as np
import pandas as pd

from Utils.analysis import text_tables
from Utils.analysis.intervals import Ratio
from Utils.base import paths
from Utils.base.text import broken
from Utils.scripts import ladder

DOCS = paths.ROOT / "docs"
# GPUs of the README's forecast, by their names in docs/forecast.csv.
EXPECTED = {"rtx3050": "RTX 3050", "rtx4090": "RTX 4090", "a100": "A100", "h100": "H100"}
LAST = "fused_optimizer"  # the script that it holds against the baseline
TOKENS = 10e9  # as many as build-nanogpt trains on
LADDER = ("source", "key", "model", "batch")  # what rows of one published ladder have in common


def expected():
    """Return a table of what TOKENS take with the baseline and with LAST on each of EXPECTED, under
    a sentence on the error of such forecasts."""
    check = pd.read_csv(DOCS / "forecast_check.csv")
    deviations = np.log(check.forecast_ms / check.measured_ms)
    of_changes = deviations.groupby([check[name] for name in LADDER]).diff().dropna()
    within = np.expm1(-of_changes).abs().quantile(0.9)
    words = (
        f"**Forecast, not measured**, from datasheets. Of {len(of_changes)} published speedups of "
        f"one change, nine in ten were forecast within {within:.0%}, without figures of the same "
        "source ([each](docs/FORECAST.md))."
    )
    forecasts = pd.read_csv(DOCS / "forecast.csv", index_col=["technique", "device"])
    baseline, last = (forecasts.loc[name].loc[[*EXPECTED]] for name in (ladder.BASELINE, LAST))
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
    return f"{words}\n\n{text_tables.markdown(texts, [*columns][:1])}"


def _cost(rows):
    """Return the hours that TOKENS take on each GPU, and the dollars where it has a price."""
    prices = pd.Series(tomllib.loads((DOCS / "prices.toml").read_text())).reindex(rows.index)
    hours = TOKENS / rows.tokens_per_second / 3600
    dollars = (prices * hours).map(", ${:,.0f}".format)
    return hours.map("{:,.0f} h".format) + dollars.where(prices.notna(), "")


def published_changes():
    """Return docs/published_changes.csv with two more columns: `ratio`, the speedup by the figures
    of docs/published.csv, and `text` with a link to its source."""
    step = ["source", "metric", "technique"]
    figures = pd.read_csv(DOCS / "published.csv").drop_duplicates(step).set_index(step)
    changes = pd.read_csv(DOCS / "published_changes.csv")
    before, after = (
        figures.loc[pd.MultiIndex.from_frame(changes[["source", "metric", name]])].reset_index()
        for name in ("before", "after")
    )
    ratio = (before.value / after.value) ** np.where(after.unit == "ms", 1, -1)
    links = " ([" + changes.name + "](" + after.url.str.partition(" ")[0] + "))"
    text = ratio.map("{:.2f}x on ".format) + changes.gpu + links
    return changes.assign(ratio=ratio, text=text)


def forecast_changes():
    """Return the forecast speedups over the script before on each of EXPECTED, a DataFrame."""
    forecasts = pd.read_csv(DOCS / "forecast.csv").set_index(["device", "technique"])
    rows = []
    for (device, script), row in forecasts.loc[[*EXPECTED]].iterrows():
        if parent := ladder.get(script).parent:
            ratio = Ratio(row.speedup, row.speedup_low, row.speedup_high)
            ratio = ratio.times(1 / forecasts.speedup[device, parent])
            text = f"{ratio} on {EXPECTED[device]}"
            rows.append({"script": script, "device": device, "ratio": ratio, "text": text})
    return pd.DataFrame(rows)
