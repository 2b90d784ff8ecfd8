"""Tables of forecasts, each from a file in docs/, which a command writes."""

import tomllib

import numpy as np
import pandas as pd

from Utils.analysis import result_tables
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


def _markdown(columns, left):
    texts = {title: [*map(str, values)] for title, values in columns.items()}
    return result_tables.markdown(texts, left)


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
    by_script = pd.read_csv(DOCS / "forecast.csv", index_col="device").groupby("technique")
    baseline, last = (
        by_script.get_group(name).loc[[*EXPECTED]] for name in (ladder.BASELINE, LAST)
    )
    shapes = baseline.batch_size.astype(str) + "x" + baseline.seq_len.astype(str)
    columns = {
        "GPU, tokens a step": baseline.index.map(EXPECTED) + ", " + shapes,
        "baseline, tokens/s": baseline.tokens_per_second.map("{:,.0f}".format),
        f"{broken(LAST)}, tokens/s": last.tokens_per_second.map("{:,.0f}".format),
        "speedup (90% range)": map(Ratio, last.speedup, last.speedup_low, last.speedup_high),
        "10B tokens: baseline": _cost(baseline),
        broken(LAST): _cost(last),
    }
    return f"{words}\n\n{_markdown(columns, [*columns][:1])}"


def _cost(rows):
    """Return the hours that TOKENS take on each GPU, and the dollars where it has a price."""
    prices = pd.Series(tomllib.loads((DOCS / "prices.toml").read_text())).reindex(rows.index)
    hours = TOKENS / rows.tokens_per_second / 3600
    dollars = (prices * hours).map(", ${:,.0f}".format)
    return hours.map("{:,.0f} h".format) + dollars.where(prices.notna(), "")


def hours():
    """Return docs/hours.csv as a table with a caption."""
    every = pd.read_csv(DOCS / "hours.csv")
    missing = every[every.reason.notna()]
    rows = every[every.reason.isna()]
    low, high, price = rows.low_hours, rows.high_hours, rows.dollars_an_hour
    columns = {
        "device": rows.device,
        "tokens/s": rows.tokens_per_second.map("{:,.0f}".format),
        "hours": _ranges(",.1f", rows.hours, low, high),
        "dollars": _ranges(",.0f", price * rows.hours, price * low, price * high),
    }
    first = every.iloc[0]
    reasons = (missing.device + " (" + missing.reason + ")").str.cat(sep="; ")
    caption = (
        f"**Forecast, not measured**: {first.model}, {first.batch_size}x{first.seq_len} tokens a "
        f"step, {broken(first.technique)}, {first.tokens / 1e9:g}B tokens, with ranges of 90%. "
        "Dollars are hours times a price of [docs/prices.toml](prices.toml). "
        f"Not listed: {reasons}."
    )
    return f"{_markdown(columns, ['device'])}\n\n{caption}"


def _ranges(form, *columns):
    """Return values with low and high ends as texts, "" of an unknown one."""
    texts = (values.map(f"{{:{form}}}".format) for values in columns)
    rows = zip(*texts, strict=True)
    return ["" if value == "nan" else f"{value} ({low}-{high})" for value, low, high in rows]
