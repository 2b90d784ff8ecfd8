"""The chart of what to expect on GPUs that are not here."""

from Utils.analysis.intervals import Ratio
from Utils.draw import chart_style, interval_rows
from Utils.draw.interval_rows import Series


def draw(rows):
    """Draw forecast speedups over each device's baseline, with the ranges of 90%; rows: of
    docs/forecast.csv, as dicts of text."""
    devices = list(dict.fromkeys(row["device"] for row in rows))
    techniques = list(dict.fromkeys(row["technique"] for row in rows))[1:]  # without the baseline
    series = []
    for device, look in zip(devices, chart_style.LOOKS, strict=False):
        forecasts = {row["technique"]: row for row in rows if row["device"] == device}
        shape = "{batch_size}x{seq_len}".format(**next(iter(forecasts.values())))
        ratios = [_ratio(forecasts.get(name, {})) for name in techniques]
        series.append(Series(f"{device}, {shape}", ratios, {**look, "mfc": "white"}))  # hollow
    words = "Forecast, not measured, from datasheets. Lines: ranges of 90%. No point: unsupported."
    head = "What to expect: a forecast of the ladder", words
    xlabel = "forecast speedup over the device's own baseline"
    figure, axes = interval_rows.forest(techniques, series, head, xlabel)
    axes.set_xlabel(xlabel)
    return figure


def _ratio(row):
    ends = [row.get(name) for name in ("speedup", "speedup_low", "speedup_high")]
    return Ratio(*map(float, ends)) if all(ends) else Ratio()
