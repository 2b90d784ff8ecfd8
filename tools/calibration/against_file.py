"""The forecast beside figures of a file: make forecast AGAINST=FILE.

AGAINST=published is docs/forecast_check.csv, whose forecasts were made without the same source.
The file has docs/published.csv's columns from source to notes; one row is one figure. A row is
forecast if its device, model, batch and technique can be read: a name of the table of devices, a
size of GPT-2, numbers, and a script of ours or words such as "bf16 + compile + flash". Columns
device_key and step, as in published.csv, describe what such words cannot. Figures of torch 2.5 and
older are not forecast.
"""

import re

import numpy as np
import pandas as pd

from tools.calibration import forecast_check, forecast_fit
from tools.calibration.published_figures import OLD_TORCH, figure, step_fields
from tools.forecast import forecast_plan, forecast_table, gpus, step_time
from Utils.base.command_line import Parser
from Utils.base.errors import UserError, first_line, naming, run_command
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import datasheets
from Utils.scripts import ladder

COLUMNS = [
    "source",
    "device",
    "model",
    "batch_size",
    "seq_len",
    "technique",
    "metric",
    "value",
    "unit",
]
OPTIONAL = ["torch", "device_key", "unsaid", "step", "left_out"]
CHECKED = ["key", "model", "technique", "batch", "tokens", "measured_ms", "forecast_ms", "error"]
UNITS = {"ms", "s", "tokens/s"}
METRICS = {"", "step time", "median step time", "mean step time", "iteration", "throughput"}
SIZES = {
    "": "gpt2",
    "124m": "gpt2",
    "small": "gpt2",
    "350m": "gpt2-medium",
    "355m": "gpt2-medium",
    "medium": "gpt2-medium",
    "774m": "gpt2-large",
    "large": "gpt2-large",
    "1558m": "gpt2-xl",
    "1.5b": "gpt2-xl",
    "xl": "gpt2-xl",
}
MAKERS = {"nvidia", "geforce", "tesla", "amd", "instinct", "gpu"}
WORDS = {  # words of a technique, with the fields of a Step that they mean
    r"fp32|float32": {},
    r"tf32": {"precision": "tf32"},
    r"bf16|bfloat16": {"precision": "bfloat16"},
    r"fp16|float16": {"precision": "float16"},
    r"pure|model\.to": {"pure": True},
    r"compile|torch\.compile": {"compile": True},
    r"flash|flashattention|sdpa": {"attention": "sdpa"},
    r"fused": {"optimizer": "fused"},
    r"8-bit|8bit": {"optimizer": "8bit"},
    r"clipping|clip": {"clip": True},
    r"eager|autocast|amp|pytorch|adamw|attention|and|with|baseline|no_optimization": {},
}


class NotForecast(Exception):
    """The reason why a row has no forecast."""


def read(path):
    """Return the rows of a file, a DataFrame of text. Raises UserError."""
    with naming(path):
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
            missing = [name for name in COLUMNS if name not in table]
            if missing:
                raise ValueError(f"no column {', '.join(missing)}")
        except ValueError as error:
            problem = f"{path}: {first_line(error)}"
            raise UserError(problem, "take docs/published.csv's header") from None
    return table.reindex(columns=COLUMNS + OPTIONAL, fill_value="")


def device_key(text):
    """Return the key of a device of the table by its words, in any order. Raises NotForecast."""
    if re.match(r"([2-9]|\d\d+) ?x ", text.lower()):
        raise NotForecast("several GPUs: communication is no part of the forecast")

    def words(name):
        return {*re.findall(r"[a-z0-9]+", name.lower().removeprefix("1x "))} - MAKERS

    for key, entry in datasheets.datasheets().items():
        if words(text) in [words(key), *map(words, entry.names)] or text.lower() == key:
            return key
    raise NotForecast(f"no device {text!r} in the table: give its key in device_key")


def config(text):
    """Return the model of CONFIGS that a text names. Raises NotForecast."""
    if text in CONFIGS:
        return text

    size = re.fullmatch(r"gpt-?2[ -]?(.*)", text.lower())
    if size and size[1] in SIZES:
        return SIZES[size[1]]
    raise NotForecast(f"{text!r} is no size of GPT-2: describe it in step")


def described(technique, model):
    """Return the fields of a Step, by name, for the words of a technique. Raises NotForecast."""
    sizes = CONFIGS[model]
    fields = {"layers": sizes.n_layer, "heads": sizes.n_head, "width": sizes.n_embd}

    for word in re.findall(r"[\w.-]+", technique.lower()):
        meanings = [values for words, values in WORDS.items() if re.fullmatch(words, word)]
        if not meanings:
            problem = f"{word!r} is no script of ours and no word for one"
            raise NotForecast(f"{problem}: describe it in step")
        fields |= meanings[0]

    if fields.pop("pure", False):
        fields["precision"] = f"pure_{fields.get('precision')}"
    return fields


def read_row(row):
    """Return (Figure, Technique) of a row; None if it is not of a script of ours.

    Raises NotForecast.
    """
    # Rows that cannot be forecast; one with a step is only kept apart from the fit
    if row.left_out and not row.step:
        raise NotForecast(row.left_out)
    if OLD_TORCH.match(row.torch):
        raise NotForecast(f"torch {row.torch}: kernels of 2.5 and older are not forecast")
    if row.unit not in UNITS or row.metric.lower() not in METRICS and not row.step:
        raise NotForecast(f"{row.metric} in {row.unit}: no time or throughput of a training step")

    # Device and numbers
    key = row.device_key or device_key(row.device)
    for name in ("batch_size", "seq_len", "value"):
        text = getattr(row, name)
        if not re.match(r"[1-9]\d*\b" if row.step else r"[1-9]\d*(\.\d+)?$|0?\.\d+$", text):
            raise NotForecast(f"{name} {text!r} is not a number")

    # Technique, or the step
    technique = None if row.step else ladder.techniques().get(row.technique)
    try:
        gpus.datasheet_by_key(key)
        fields = step_fields(row.step)
        if not row.step and not technique:
            fields = described(row.technique, config(row.model))
        return figure(row, key, fields), technique
    except (UserError, ValueError, TypeError) as error:
        raise NotForecast(f"step or device: {first_line(error)}") from None


def our_step(technique, model, fig):
    """Return (seconds, factor of their range) of a script of ours at the shape of a Figure.

    Raises NotForecast.
    """
    entry = gpus.datasheet_by_key(fig.key)
    values = {
        "model": config(model),
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


def forecast(row):
    """Return the milliseconds of a row, published and forecast, with range and error.

    Raises NotForecast.
    """
    fig, technique = read_row(row)
    seconds, factor = our_step(technique, row.model, fig) if technique else other_step(fig)
    half = step_time.widths()[0] * factor * (forecast_check.UNSAID if fig.unsaid else 1)
    low_ms, forecast_ms, high_ms = 1e3 * seconds * np.exp([-half, 0, half])
    return {
        "published_ms": 1e3 * fig.seconds,
        "forecast_ms": forecast_ms,
        "low_ms": low_ms,
        "high_ms": high_ms,
        "error": seconds / fig.seconds - 1,
        "key": fig.key,
    }


def forecasts(table):
    """Return a row for each row of the file, with a forecast or the reason why there is none."""
    rows = []
    for row in table.itertuples():
        cells = {
            "device": row.device,
            "model": row.model,
            "batch": row.batch_size,
            "tokens": row.seq_len,
            "technique": row.technique,
        }
        try:
            rows.append(cells | forecast(row))
        except NotForecast as reason:
            rows.append(cells | {"not forecast": str(reason)})
    return pd.DataFrame(rows)


def report(rows):
    """Return the forecasts as a table, reasons for the others, and the errors by maker."""
    if "error" not in rows:
        rows = rows.assign(error=np.nan)
    is_forecast = rows.error.notna()
    forecast_rows = rows[is_forecast]

    # Forecasts
    text = []
    if len(forecast_rows):
        times = forecast_rows[["published_ms", "forecast_ms", "low_ms", "high_ms"]]
        times = times.map("{:.1f}".format)
        columns = {
            "device": forecast_rows.key,
            "model": forecast_rows.model.str[:24],
            "technique": forecast_rows.technique.str[:28],
            "shape": forecast_rows.batch + "x" + forecast_rows.tokens,
            "published": times.published_ms,
            "forecast": times.forecast_ms,
            "90% range": times.low_ms + "-" + times.high_ms,
            "error": forecast_rows.error.map("{:+.1%}".format),
        }
        text += ["Milliseconds a step:\n", forecast_table.table(columns), ""]

    # Reasons
    for number, row in rows[~is_forecast].iterrows():
        name = f"{row.device}, {row.technique}"
        text.append(f"row {number + 1}, {name[:60]}: not forecast: {row['not forecast']}")
    if not is_forecast.all():
        text.append("")
    if not is_forecast.any():
        return "\n".join([*text, f"no row of {len(rows)} can be forecast"])

    # Errors by maker
    sheets = forecast_rows.key.map(gpus.datasheet_by_key)
    makers = sheets.map(lambda sheet: "AMD" if sheet.architecture else "NVIDIA")
    for maker, part in [("all", forecast_rows), *forecast_rows.groupby(makers, sort=False)]:
        in_range = part.published_ms.between(part.low_ms, part.high_ms).mean()
        error = f"median error {part.error.abs().median():.1%}, {in_range:.0%} in their range"
        text.append(f"{maker}: {len(part)} figures, {error}")
    return "\n".join(text)


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
        error = part.error.abs()
        roofline = part.roofline_error.abs()
        text.append(
            f"{name}: {len(part)} figures, median error {error.median():.1%} (plain roofline "
            f"{roofline.median():.1%}), 90% within {error.quantile(0.9):.1%} "
            f"({roofline.quantile(0.9):.1%}); {part.in_range.mean():.0%} of them in their range"
        )
    return "\n".join(text)


def main(*words):
    args = Parser("forecast", __doc__, "against").parse_args(words)
    if args.against == "published":
        print("Forecast, each source left out of the fit, beside what was published:\n")
        print(check_report())
    else:
        print(report(forecasts(read(args.against))))


if __name__ == "__main__":
    run_command("forecast", main)
