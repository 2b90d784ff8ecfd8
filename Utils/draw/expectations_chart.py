"""The chart of what to expect on GPUs that are not here."""

import numpy as np

from Utils.analysis.intervals import Ratio
from Utils.draw import chart_style, interval_rows


def draw(rows):
    """Forecast speedups over each device's baseline, with the ranges of 90%; rows: of
    docs/forecast.csv, as dicts of text."""
    devices = list(dict.fromkeys(row["device"] for row in rows))
    techniques = list(dict.fromkeys(row["technique"] for row in rows))[1:]  # without the baseline
    words = "Forecast, not measured, from datasheets. Lines: ranges of 90%. No point: unsupported."
    height = 1 + 0.23 * len(devices) * len(techniques)
    figure, axes = chart_style.figure(height, "What to expect: a forecast of the ladder", words)
    offsets = np.linspace(-0.36, 0.36, len(devices))
    text = {"size": "x-small", "color": "0.2"}
    ratios = []
    for number, device in enumerate(devices):
        forecasts = [row for row in rows if row["device"] == device and not row.get("reason")]
        shape = f"{forecasts[0]['batch_size']}x{forecasts[0]['seq_len']}" if forecasts else "none"
        look = {"marker": "os^Dv"[number % 5], "mfc": "white", "ms": 6}  # hollow: not measured
        axes.plot([], [], ls="", color=f"C{number}", label=f"{device}, {shape}", **look)
        for row in forecasts:
            if row["technique"] in techniques:
                ends = (row[name] for name in ("speedup", "speedup_low", "speedup_high"))
                ratio = Ratio(*map(float, ends))
                y = techniques.index(row["technique"]) + offsets[number]
                interval_rows.point(axes, y, ratio, f"C{number}", text=text, **look)
                ratios.append(ratio)
    interval_rows.mark_one(axes)
    interval_rows.logarithmic(axes, ratios, room=0.1)
    chart_style.name_rows(axes, techniques, top=-0.5)
    axes.set_xlabel("forecast speedup over the device's own baseline")
    axes.legend(**chart_style.BESIDE)
    return figure
