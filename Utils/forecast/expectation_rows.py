"""Rows of docs/forecast.csv and docs/hours.csv: what to expect of GPUs that are not here."""

from Utils.base.units import GIB
from Utils.device import auto_shape, datasheets
from Utils.forecast import forecast_plan, time_range
from Utils.forecast.forecast_device import device_of
from Utils.scripts import ladder

DEVICES = ("rtx3050", "t4", "rtx4090", "a100", "h100")
PRETRAINING = "all_together"
TOKENS = 1e10  # to pretrain on


def ladder_rows():
    """Yield the rows of the ladder on DEVICES, dicts by column."""
    values = {"device": "cuda", "model": "gpt2", "dataset": "synthetic", "seq_len": 1024}
    for key in DEVICES:
        args = forecast_plan.settings(values, device_of(key))
        entry = datasheets.find(key)
        budget = auto_shape.usable_bytes(entry.memory_bytes)
        forecasts = forecast_plan.on_this_device(ladder.group("ladder"), args, entry, budget)
        for forecast in forecasts:
            row = {"device": key, "technique": forecast.technique}
            row |= {"batch_size": args.batch_size, "seq_len": args.seq_len}
            figures = _figures(forecast, forecasts[0].time) if forecast.time else {}
            yield row | figures | {"reason": forecast.reason or None}


def _figures(forecast, baseline):
    time = forecast.time
    speedup = time_range.speedup(baseline, time, 0 if time is baseline else time.factor)
    return {
        "forecast_ms": f"{1e3 * time.seconds:.2f}",
        "low_ms": f"{1e3 * time.low:.2f}",
        "high_ms": f"{1e3 * time.high:.2f}",
        "speedup": f"{speedup.value:.3f}",
        "speedup_low": f"{speedup.low:.3f}",
        "speedup_high": f"{speedup.high:.3f}",
        "tokens_per_second": f"{forecast.tokens / time.seconds:.0f}",
        "peak_gib": f"{forecast.memory.peak / GIB:.2f}",
        "largest_batch": forecast.memory.largest_batch,
        "mostly": time.mostly,
    }


def pretraining_hours(prices_file):
    """Yield the rows of a pretraining on every device, dicts by column."""
    prices = forecast_plan.prices(prices_file)
    values = {"model": "gpt2", "dataset": "synthetic", "batch_size": "auto", "seq_len": "auto"}
    args, forecasts = next(forecast_plan.on_every_device([PRETRAINING], values))
    for forecast in forecasts:
        row = {"device": forecast.device, "technique": forecast.technique, "model": args.model}
        row |= {"batch_size": args.batch_size, "seq_len": args.seq_len, "tokens": TOKENS}
        row |= dict.fromkeys(["tokens_per_second", "hours", "low_hours", "high_hours"])
        if forecast.time:
            row["tokens_per_second"] = f"{forecast.tokens / forecast.time.seconds:.0f}"
            hours, low, high = (f"{value:.2f}" for value in forecast.hours(TOKENS))
            row |= {"hours": hours, "low_hours": low, "high_hours": high}
        row |= {"dollars_an_hour": prices.get(forecast.device), "reason": forecast.reason}
        yield row
