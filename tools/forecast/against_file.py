"""The forecast beside figures of a file.

`published` is docs/forecast_check.csv, whose forecasts were made without the same source.
The file has columns of docs/published.csv; one row is one figure. Its device is that of device_key,
or a name in the table of datasheets. Its technique is a script of ours at a model of ours, unless
`step` describes another one, by fields of `described_step.Step`. Figures of torch 2.5 and older are
not forecast.
"""

import re

import numpy as np
import pandas as pd

from tools.forecast import described_step, forecast_errors, forecast_plan, gpus
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


def check(row):
    """Raise NotForecast for a row that is no time of a training step in a known torch."""
    if row.left_out and not row.step:
        raise NotForecast(row.left_out)
    if OLD_TORCH.match(row.torch):
        raise NotForecast(f"torch {row.torch}: kernels of 2.5 and older are not forecast")
    if row.unit not in UNITS or row.metric.lower() not in METRICS and not row.step:
        raise NotForecast(f"{row.metric} in {row.unit}: no time or throughput of a training step")
    for name in ("batch_size", "seq_len", "value"):
        text = getattr(row, name)
        if not re.match(r"[1-9]\d*\b|0?\.\d*[1-9]", text):
            raise NotForecast(f"{name} {text!r} is not a number")
    if not row.step and (row.technique not in ladder.techniques() or row.model not in CONFIGS):
        problem = f"{row.technique!r} at {row.model!r} is no script of ours at a model of ours"
        raise NotForecast(f"{problem}: describe it in step")


def beside(row):
    """Return the figure of a row beside its forecast, a dict with columns of the check.

    Raises NotForecast.
    """
    check(row)
    sheet = datasheets.datasheet_for(row.device)
    key = row.device_key or (sheet.key if sheet else row.device)
    tokens = int(re.match(r"\d+", row.seq_len)[0])
    try:
        entry = gpus.datasheet_by_key(key)
        step = described_step.step_of(int(row.batch_size), tokens, row.step)
    except (UserError, ValueError, TypeError) as error:
        raise NotForecast(f"step or device: {first_line(error)}") from None

    if row.step:
        seconds = described_step.seconds(step, entry)
        factor = forecast_errors.range_factor(entry, step.precision.removeprefix("pure_"))
    else:
        seconds, factor = our_step(row, step, entry)
    half = forecast_errors.widths()[0] * factor * (UNSAID if row.unsaid else 1)
    value = float(row.value)
    step_tokens = step.microbatches * step.batch * tokens
    measured_ms = {"ms": value, "s": 1e3 * value, "tokens/s": 1e3 * step_tokens / value}
    return {
        "source": row.source,
        "key": key,
        "model": row.model[:24],
        "technique": row.technique[:28],
        "batch": step.batch,
        "tokens": tokens,
        "measured_ms": measured_ms[row.unit],
        "forecast_ms": 1e3 * seconds,
        "low_ms": 1e3 * seconds * np.exp(-half),
        "high_ms": 1e3 * seconds * np.exp(half),
    }


def our_step(row, step, entry):
    """Return (seconds, factor of their range) of a script of ours. Raises NotForecast."""
    values = {
        "model": row.model,
        "dataset": "synthetic",
        "device": entry.key,
        "batch_size": step.batch,
        "seq_len": step.tokens,
    }
    args = forecast_plan.settings(values, forecast_plan.forecast_device(entry.key))
    technique = ladder.get(row.technique)
    (forecast,) = forecast_plan.forecasts_on_device([technique], args, entry, entry.memory_bytes)
    if not forecast.time:
        raise NotForecast(forecast.reason or forecast_plan.NOT_FORECAST)
    return forecast.time.seconds, forecast.time.factor


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
