"""The forecast beside figures of a file.

`published` is docs/forecast_check.csv, whose forecasts were made without the same source.
The file has columns of docs/published.csv; one row is one figure. Its device is that of device_key,
or a name in the table of datasheets. Its technique is a script here, also one of the user's, at a
model of ours. Figures of torch 2.5 and older are not forecast.
"""

import re

import numpy as np
import pandas as pd

from tools.forecast import forecast_errors, forecast_plan, gpus
from Utils.analysis import text_tables
from Utils.base import paths
from Utils.base.errors import UserError, first_line, naming
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import datasheets
from Utils.scripts import ladder

PUBLISHED = paths.ROOT / "docs" / "published.csv"
# A text that names torch 2.5 or older, by its version or by the year
OLD_TORCH = re.compile(r"[01]\.|2\.[0-5]\b|.*\b20(1\d|2[0-4])\b")
# Factor of a range if a source does not say the variant of its device or its power limit
UNSAID = 1.25
NEEDED = ["device", "model", "batch_size", "seq_len", "technique", "metric", "value", "unit"]
SHOWN = [
    "key",
    "model",
    "technique",
    "batch",
    "tokens",
    "measured_ms",
    "forecast_ms",
    "low_ms",
    "high_ms",
    "error",
]
UNITS = {"ms", "s", "tokens/s"}
METRICS = {"", "step time", "median step time", "mean step time", "iteration", "throughput"}


class NotForecast(Exception):
    """The reason why a row has no forecast."""


def read(path):
    """Return the rows of a file, a DataFrame of text. Raises UserError."""
    with naming(path):
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
            missing = [name for name in NEEDED if name not in table]
            if missing:
                raise ValueError(f"no column {', '.join(missing)}")
        except ValueError as error:
            problem = f"{path}: {first_line(error)}"
            raise UserError(problem, "take docs/published.csv's header") from None
    return table.reindex(columns=pd.read_csv(PUBLISHED, nrows=0).columns, fill_value="")


def technique_of(row):
    """Return the Technique of a row. Raises NotForecast if it is no step that can be forecast."""
    if OLD_TORCH.match(row.torch):
        raise NotForecast(f"torch {row.torch}: kernels of 2.5 and older are not forecast")
    if row.unit not in UNITS or row.metric.lower() not in METRICS:
        raise NotForecast(f"{row.metric} in {row.unit}: no time or throughput of a training step")
    for name in ("batch_size", "seq_len", "value"):
        text = getattr(row, name)
        if not re.match(r"[1-9]\d*\b|0?\.\d*[1-9]", text):
            raise NotForecast(f"{name} {text!r} is not a number")
    technique = ladder.techniques().get(row.technique)
    if not technique or row.model not in CONFIGS:
        problem = f"{row.technique!r} at {row.model!r} is no script here at a model of ours"
        raise NotForecast(f"{problem}: `make new` makes one to write it in")
    return technique


def beside(row):
    """Return the figure of a row beside its forecast, a dict with columns of the check.

    Raises NotForecast.
    """
    technique = technique_of(row)
    sheet = datasheets.datasheet_for(row.device)
    key = row.device_key or (sheet.key if sheet else row.device)
    values = {
        "model": row.model,
        "dataset": "synthetic",
        "device": key,
        "batch_size": int(row.batch_size),
        "seq_len": int(re.match(r"\d+", row.seq_len)[0]),
    }
    try:
        entry = gpus.datasheet_by_key(key)
        args = forecast_plan.settings(values, forecast_plan.forecast_device(key))
    except (UserError, ValueError) as error:
        raise NotForecast(first_line(error)) from None

    (forecast,) = forecast_plan.forecasts_on_device([technique], args, entry, entry.memory_bytes)
    time = forecast.time
    if not time:
        raise NotForecast(forecast.reason or forecast_plan.NOT_FORECAST)
    half = forecast_errors.widths()[0] * time.factor * (UNSAID if row.unsaid else 1)
    value = float(row.value)
    measured_ms = {"ms": value, "s": 1e3 * value, "tokens/s": 1e3 * forecast.tokens / value}
    return {
        "source": row.source,
        "key": key,
        "model": row.model,
        "technique": row.technique,
        "batch": args.batch_size,
        "tokens": args.seq_len,
        "measured_ms": measured_ms[row.unit],
        "forecast_ms": 1e3 * time.seconds,
        "low_ms": 1e3 * time.seconds * np.exp(-half),
        "high_ms": 1e3 * time.seconds * np.exp(half),
    }


def report(path):
    """Return the forecasts of a file's rows as a table, reasons for the others, and the errors.

    Raises UserError.
    """
    if path == "published":
        return check_report()
    rows = read(path)
    lines = []
    reasons = []
    for number, row in enumerate(rows.itertuples(), start=1):
        try:
            lines.append(beside(row))
        except NotForecast as reason:
            name = f"{row.device}, {row.technique}"
            reasons.append(f"row {number}, {name[:60]}: not forecast: {reason}")

    if not lines:
        return "\n".join([*reasons, f"no row of {len(rows)} can be forecast"])
    table = forecast_errors.with_errors(pd.DataFrame(lines))
    return page(table, {"all": table}, *reasons)


def check_report():
    """Return the check against published figures as a table, and its errors by source."""
    rows = forecast_errors.check_rows()
    in_sample = forecast_errors.check_rows(in_sample=True)
    parts = {
        "all": rows,
        "GPT-2 124M": rows[rows.model.str.startswith("GPT-2")],
        **dict(list(rows.groupby("source", sort=False))),
        "in sample, and not in the sums": in_sample,
    }
    shown = page(pd.concat([rows, in_sample]), parts, forecast_errors.beside_roofline())
    return f"Forecast, each source left out of the fit, beside what was published:\n\n{shown}"


def page(table, parts, *lines):
    """Return figures beside their forecasts, lines of text, and the errors of parts by title."""
    shown = table[SHOWN].assign(error=table.error.map("{:+.1%}".format))
    errors = text_tables.markdown(forecast_errors.summary(parts), ["figures"])
    return "\n".join([shown.to_markdown(index=False, floatfmt=",.1f"), "", *lines, "", errors])
