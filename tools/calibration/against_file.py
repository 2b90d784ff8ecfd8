"""The forecast beside figures of a file: make forecast AGAINST=FILE.

AGAINST=published is docs/forecast_check.csv, whose forecasts were made without the same source.
The file has columns of docs/published.csv; one row is one figure. Its device is that of device_key,
or a name in the table of datasheets. Its technique is a script of ours at a model of ours, unless
`step` describes another one. Figures of torch 2.5 and older are not forecast.
"""

import re

import numpy as np
import pandas as pd

from tools.calibration import forecast_check, forecast_fit
from tools.calibration.published_figures import OLD_TORCH, PUBLISHED, figure, step_fields
from tools.forecast import forecast_plan, forecast_table, gpus, step_time
from Utils.base.command_line import Parser
from Utils.base.errors import UserError, first_line, naming, run_command
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import datasheets
from Utils.scripts import ladder

NEEDED = ["device", "model", "batch_size", "seq_len", "technique", "metric", "value", "unit"]
CHECKED = ["key", "model", "technique", "batch", "tokens", "measured_ms", "forecast_ms", "error"]
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


def read_row(row):
    """Return (Figure, its Technique or None if the row has a step). Raises NotForecast."""
    # Rows that cannot be forecast; one with a step is only kept apart from the fit
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

    technique = None
    if not row.step:
        technique = ladder.techniques().get(row.technique)
        if not technique or row.model not in CONFIGS:
            problem = f"{row.technique!r} at {row.model!r} is no script of ours at a model of ours"
            raise NotForecast(f"{problem}: describe it in step")

    sheet = datasheets.datasheet_for(row.device)
    key = row.device_key or (sheet.key if sheet else row.device)
    try:
        gpus.datasheet_by_key(key)
        return figure(row, key, step_fields(row.step)), technique
    except (UserError, ValueError, TypeError) as error:
        raise NotForecast(f"step or device: {first_line(error)}") from None


def our_step(technique, model, fig):
    """Return (seconds, factor of their range) of a script of ours at the shape of a Figure.

    Raises NotForecast.
    """
    entry = gpus.datasheet_by_key(fig.key)
    values = {
        "model": model,
        "dataset": "synthetic",
        "device": fig.key,
        "batch_size": fig.step.batch,
        "seq_len": fig.step.tokens,
    }
    args = forecast_plan.settings(values, forecast_plan.forecast_device(fig.key))
    (forecast,) = forecast_plan.forecasts_on_device([technique], args, entry, entry.memory_bytes)
    if not forecast.time:
        raise NotForecast(forecast.reason or forecast_plan.NOT_FORECAST)
    return forecast.time.seconds, forecast.time.factor


def other_step(fig):
    """Return (seconds, factor of their range) of the step that a Figure describes."""
    cases = forecast_fit.Cases([fig], forecast_check.works([fig]))
    seconds = cases.step_time(fig, step_time.constants()).seconds
    return seconds, step_time.range_factor(gpus.datasheet_by_key(fig.key), fig.precision)


def report(rows):
    """Return the forecasts of a file's rows as a table, reasons for the others, and the errors."""
    forecasts = []
    reasons = []
    errors = []
    in_range = []
    for number, row in enumerate(rows.itertuples(), start=1):
        try:
            fig, technique = read_row(row)
            step = our_step(technique, row.model, fig) if technique else other_step(fig)
        except NotForecast as reason:
            name = f"{row.device}, {row.technique}"
            reasons.append(f"row {number}, {name[:60]}: not forecast: {reason}")
            continue

        seconds, factor = step
        half = step_time.widths()[0] * factor * (forecast_check.UNSAID if fig.unsaid else 1)
        low, high = seconds * np.exp([-half, half])
        error = seconds / fig.seconds - 1
        errors.append(abs(error))
        in_range.append(low <= fig.seconds <= high)
        forecasts.append(
            {
                "device": fig.key,
                "model": row.model[:24],
                "technique": row.technique[:28],
                "shape": f"{row.batch_size}x{row.seq_len}",
                "published": f"{1e3 * fig.seconds:.1f}",
                "forecast": f"{1e3 * seconds:.1f}",
                "90% range": f"{1e3 * low:.1f}-{1e3 * high:.1f}",
                "error": f"{error:+.1%}",
            }
        )

    total = f"no row of {len(rows)} can be forecast"
    text = []
    if forecasts:
        text += ["Milliseconds a step:\n", forecast_table.table(forecasts), ""]
        error = f"median error {np.median(errors):.1%}, {np.mean(in_range):.0%} in their range"
        total = f"all: {len(forecasts)} figures, {error}"
    if reasons:
        text += [*reasons, ""]
    return "\n".join([*text, total])


def check_report():
    """Return the check against published figures as a table, and its summary by source."""
    table = step_time.check_rows()
    in_sample = step_time.check_rows(in_sample=True)
    parts = {
        "all": table,
        "GPT-2 124M": table[table.model.str.startswith("GPT-2")],
        **dict(list(table.groupby("source", sort=False))),
        "in sample, and not in the sums": in_sample,
    }

    shown = pd.concat([table, in_sample])[CHECKED]
    shown["error"] = shown.error.map("{:+.0%}".format)
    text = [shown.to_markdown(index=False, floatfmt=",.1f"), ""]
    for name, part in parts.items():
        errors = step_time.errors_beside_roofline(part)
        in_range = f"{part.in_range.mean():.0%} of them in their range"
        text.append(f"{name}: {len(part)} figures, {errors}; {in_range}")
    return "\n".join(text)


def main(*words):
    args = Parser("forecast", __doc__, "against").parse_args(words)
    if args.against == "published":
        print("Forecast, each source left out of the fit, beside what was published:\n")
        print(check_report())
    else:
        print(report(read(args.against)))


if __name__ == "__main__":
    run_command("forecast", main)
