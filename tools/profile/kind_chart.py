"""The chart of profiles: kinds of work stacked; with it, what a report says of them."""

import json
from contextlib import suppress
from pathlib import Path

import pandas as pd
import seaborn as sns

from tools.forecast.kernel_kinds import KINDS
from Utils.draw import chart_style

WIDE = 0.06  # of the axis: a part of a bar that has room for its number
DARK = ("copies", "communication", "other")  # numbers are white on these


def of_study(path, chosen):
    """Return the chart and the advice of profiles of a study's device and shape, None without.

    path: of the results file; profiles/ is beside it. The advice is a dict of texts by technique.
    """
    shape = chosen.rows.iloc[0][["device", "torch", "model", "seq_len"]]
    summaries = []
    advice = {}
    for name in chosen.ladder.scripts:
        with suppress(OSError, ValueError):  # not there, or damaged
            summary = json.loads((Path(path).parent / "profiles" / f"{name}.json").read_text())
            if any(summary.get(key, value) != value for key, value in shape.items()):
                continue
            summaries.append(summary)
            if summary["status"] == "ok":
                by_kind = {
                    kind: {"ms": facts["forecast_ms"]}
                    for kind, facts in summary["profile"]["kinds"].items()
                    if facts.get("forecast_ms") is not None
                }
                if by_kind:  # of the batch that was asked for
                    forecast = summary | {"technique": f"{name}, forecast"}
                    forecast |= {"profile": {"kinds": by_kind}}
                    summaries.append(forecast | {"batch_size": summary["asked_batch_size"]})
                advice[name] = summary["advice"]
    return (draw(summaries), advice) if advice else None


def draw(summaries):
    """Draw the kinds of work of each profile stacked: milliseconds a step, of as many tokens."""
    colours = dict(zip(KINDS, sns.color_palette("Set2", 8), strict=False))
    colours |= {"copies": "0.45", "communication": "0.25", "other": "0.1", "idle": "0.88"}
    names = []
    described = []
    times = []  # a dict of milliseconds by kind for each summary
    for summary in summaries:
        names.append(summary["technique"])
        times.append({})
        if summary["status"] == "ok":
            scale = summary["asked_batch_size"] / summary["batch_size"]
            if scale != 1:
                names[-1] += f" (batch {summary['batch_size']})"
            by_kind = summary["profile"]["kinds"]
            times[-1] = {kind: scale * facts["ms"] for kind, facts in by_kind.items()}
            described.append(
                f"{summary['device']}, torch {summary['torch']}, {summary['model']}, "
                f"{summary['asked_batch_size']}x{summary['seq_len']} tokens a step, "
                f"{summary['dataset']}, commit {summary['commit'] or 'unknown'}"
            )
    times = pd.DataFrame(times, columns=[*KINDS]).fillna(0)
    widest = times.sum(axis=1).max() or 1
    height = 1.6 + 0.4 * len(summaries)
    figure, (axes,) = chart_style.figure(height, "Step time by kind of work", *described[:1])
    left = 0
    for kind, ms in times.items():
        if ms.any():
            look = {"color": colours[kind], "label": KINDS[kind], "height": 0.7, "zorder": 2}
            bars = axes.barh(times.index, ms, left=left, **look)
            texts = [_digits(width) if width > WIDE * widest else "" for width in ms]
            look = {"color": "white" if kind in DARK else "black", "size": "small", "zorder": 3}
            axes.bar_label(bars, texts, label_type="center", **look)
        left = left + ms
    for y, (summary, end) in enumerate(zip(summaries, left, strict=True)):
        if summary["status"] == "ok":
            look = {"va": "center", "fontweight": "bold"}
            axes.text(end + 0.015 * widest, y, _digits(end), **look)
        else:
            chart_style.no_value(axes, y, summary["note"])
    if times.any(axis=None):
        axes.legend(**chart_style.BESIDE)
    axes.set_xlim(0, widest * 1.12)
    axes.set_xlabel("ms per step under the profiler, which slows it; idle: nothing is computed")
    chart_style.name_rows(axes, names)
    return figure


def _digits(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
