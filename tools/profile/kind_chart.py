"""The chart of profiles with kinds of work stacked, and the advice that a report shows."""

from pathlib import Path

import pandas as pd
import seaborn as sns

from tools.forecast.kernel_kinds import KINDS
from Utils.base import files
from Utils.draw import chart_style

WIDE = 0.06  # share of the axis from which a part of a bar has room for its number
COLOURS = dict(zip(KINDS, sns.color_palette("Set2", 8), strict=False)) | {
    "copies": "0.45",
    "communication": "0.25",
    "other": "0.1",
    "idle": "0.88",
}
SUMMARY = {  # with status ok all but note; of a user's script no shape
    **dict.fromkeys(("technique", "status", "note?", "device?", "torch?"), str),
    **dict.fromkeys(("model?", "dataset?"), str),
    **dict.fromkeys(("seq_len?", "batch_size?", "asked_batch_size?"), int),
    "commit?": (str, None),
    "profile?": {"kinds": {"*": {"ms": float, "forecast_ms?": (float, None)}}},
    "advice?": [str],
}
DARK = ("copies", "communication", "other")  # numbers are white on these


def of_study(path, chosen):
    """Return (chart, advice) of the profiles of a study's device and shape, None without profiles.

    path: the results file; profiles/ is beside it. chosen: the Study. The advice is a dict of texts
    by technique.
    """
    shape = chosen.rows.iloc[0][["device", "torch", "model", "seq_len"]]
    summaries = []
    advice = {}
    for name in chosen.ladder.scripts:
        summary = read_summary(Path(path).parent / "profiles" / f"{name}.json")
        if not summary or any(summary.get(key, value) != value for key, value in shape.items()):
            continue

        summaries.append(summary)
        if summary["status"] == "ok":
            forecast = _forecast(summary)
            if forecast:
                summaries.append(forecast)
            advice[name] = summary["advice"]
    return (draw(summaries), advice) if advice else None


def read_summary(path):
    """Return the summary in a file, None without one, or with a line on stderr if it is damaged."""
    return files.read_cache(path, SUMMARY, "`make profile` makes it anew")


def _forecast(summary):
    """Return a summary with the forecast times in place of the measured ones, None without."""
    kinds = {
        kind: {"ms": kind_time["forecast_ms"]}
        for kind, kind_time in summary["profile"]["kinds"].items()
        if kind_time.get("forecast_ms") is not None
    }
    if not kinds:
        return None
    return summary | {
        "technique": f"{summary['technique']}, forecast",
        "profile": {"kinds": kinds},
        "batch_size": summary["asked_batch_size"],  # the batch that is forecast
    }


def draw(summaries):
    """Draw the kinds of work of each profile stacked: ms a step, for equal numbers of tokens."""
    # The name and the times of each profile; the setup of the first.
    names = []
    setups = []
    times = []  # a dict of milliseconds by kind for each summary
    for summary in summaries:
        name = summary["technique"]
        kind_ms = {}
        if summary["status"] == "ok":
            scale = summary["asked_batch_size"] / summary["batch_size"]
            if scale != 1:
                name += f" (batch {summary['batch_size']})"
            kinds = summary["profile"]["kinds"]
            kind_ms = {kind: scale * kind_time["ms"] for kind, kind_time in kinds.items()}
            setups.append(
                f"{summary['device']}, torch {summary['torch']}, {summary['model']}, "
                f"{summary['asked_batch_size']}x{summary['seq_len']} tokens a step, "
                f"{summary['dataset']}, commit {summary['commit'] or 'unknown'}"
            )
        names.append(name)
        times.append(kind_ms)
    times = pd.DataFrame(times, columns=[*KINDS]).fillna(0)
    widest = times.sum(axis=1).max() or 1

    # A bar for each profile, built up kind by kind.
    height = 1.6 + 0.4 * len(summaries)
    figure, (axes,) = chart_style.figure(height, "Step time by kind of work", *setups[:1])
    left = 0
    for kind, ms in times.items():
        if ms.any():
            bars = axes.barh(
                times.index,
                ms,
                left=left,
                color=COLOURS[kind],
                label=KINDS[kind],
                height=0.7,
                zorder=2,
            )
            axes.bar_label(
                bars,
                [_digits(width) if width > WIDE * widest else "" for width in ms],
                label_type="center",
                color="white" if kind in DARK else "black",
                size="small",
                zorder=3,
            )
        left = left + ms

    # The sum at the end of a bar, or why there is none.
    for y, (summary, end) in enumerate(zip(summaries, left, strict=True)):
        if summary["status"] == "ok":
            x = end + 0.015 * widest
            axes.text(x, y, _digits(end), va="center", fontweight="bold")
        else:
            chart_style.no_value(axes, y, summary["note"])

    if times.any(axis=None):
        axes.legend(**chart_style.LEGEND_BESIDE)
    axes.set_xlim(0, widest * 1.12)
    axes.set_xlabel("ms per step under the profiler, which slows it; idle: nothing is computed")
    chart_style.name_rows(axes, names)
    return figure


def _digits(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
