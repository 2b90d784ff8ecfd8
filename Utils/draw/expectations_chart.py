"""The chart of what to expect on GPUs that are not here."""

import numpy as np

from Utils.draw import chart_style

NAMES = ("speedup", "speedup_low", "speedup_high")  # columns of docs/forecast.csv


def draw(rows):
    """Forecast speedups over each device's baseline, with the ranges of 90%; rows: of
    docs/forecast.csv, as dicts of text."""
    devices = list(dict.fromkeys(row["device"] for row in rows))
    techniques = list(dict.fromkeys(row["technique"] for row in rows))
    words = "Forecast, not measured, from datasheets. Lines: ranges of 90%. No bar: unsupported."
    figure, axes = chart_style.figure(5.5, "What to expect: a forecast of the ladder", words)
    width = 0.8 / len(devices)
    for place, device in enumerate(devices):
        known = [row for row in rows if row["device"] == device and not row.get("reason")]
        at = [techniques.index(row["technique"]) + (place + 0.5) * width - 0.4 for row in known]
        speedup, low, high = np.array([[row[name] for row in known] for name in NAMES], float)
        shape = f"{known[0]['batch_size']}x{known[0]['seq_len']}" if known else "does not run"
        how = {"color": f"C{place}", "alpha": 0.6, "hatch": "//", "label": f"{device}, {shape}"}
        axes.bar(at, speedup, width, **how)
        how = {"fmt": "none", "ecolor": "0.25", "capsize": 2, "linewidth": 1}
        axes.errorbar(at, speedup, yerr=[speedup - low, high - speedup], **how)
    axes.axhline(1, color=chart_style.GREY, linewidth=1)
    axes.set_xticks(range(len(techniques)), techniques, rotation=20, ha="right")
    axes.set_ylabel("forecast speedup over the device's own baseline")
    axes.legend(loc="upper left", frameon=False)
    return figure
