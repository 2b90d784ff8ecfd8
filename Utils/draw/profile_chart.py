"""The chart of a step's time by kind of work."""

import seaborn as sns

from Utils.draw import chart_style

WIDE = 0.06  # of the axis: a part of a bar that has room for its number
DARK = ("copies", "communication", "other")  # numbers are white on these


def draw(summaries, kinds):
    """Draw each technique's kinds of work stacked: milliseconds a step, of as many tokens.

    kinds: names of the kinds in their order, with their words for the legend.
    """
    colours = dict(zip(kinds, sns.color_palette("Set2", 8), strict=False))
    colours |= {"copies": "0.45", "communication": "0.25", "other": "0.1", "idle": "0.88"}
    described = [_described(summary) for summary in summaries if summary["status"] == "ok"]
    height = 1.6 + 0.4 * len(summaries)
    figure, axes = chart_style.figure(height, "Step time by kind of work", *described[:1])
    times = [kind_ms(summary) if summary["status"] == "ok" else {} for summary in summaries]
    widest = max((sum(ms.values()) for ms in times), default=0) or 1
    for y, (summary, ms) in enumerate(zip(summaries, times, strict=True)):
        if not ms:
            chart_style.no_value(axes, y, summary["note"])
            continue
        left = 0.0
        for kind, width in ms.items():
            axes.barh(y, width, left=left, color=colours[kind], height=0.7, zorder=2)
            if width > WIDE * widest:
                look = {"color": "white" if kind in DARK else "black", "size": "small", "zorder": 3}
                axes.text(left + width / 2, y, _digits(width), ha="center", va="center", **look)
            left += width
        axes.text(left + 0.015 * widest, y, _digits(left), va="center", fontweight="bold")
    shown = [kind for kind in kinds if any(ms.get(kind) for ms in times)]
    for kind in shown:
        axes.barh(0, 0, color=colours[kind], label=kinds[kind])
    if shown:
        axes.legend(**chart_style.BESIDE)
    axes.set_xlim(0, widest * 1.12)
    axes.set_xlabel("ms per step under the profiler, which slows it; idle: nothing is computed")
    chart_style.name_rows(axes, [_label(summary) for summary in summaries])
    return figure


def kind_ms(summary):
    """Return milliseconds a step by kind of work, scaled to the requested batch."""
    scale = summary["asked_batch_size"] / summary["batch_size"]
    return {kind: scale * facts["ms"] for kind, facts in summary["profile"]["kinds"].items()}


def forecast_of(summary):
    """Return [a summary of the forecast in a summary, which has the requested batch]; [] without
    a forecast."""
    kinds = {
        kind: {"ms": facts["forecast_ms"]}
        for kind, facts in summary["profile"]["kinds"].items()
        if facts.get("forecast_ms") is not None
    }
    if not kinds:
        return []
    forecast = {"technique": f"{summary['technique']}, forecast", "profile": {"kinds": kinds}}
    return [summary | forecast | {"batch_size": summary["asked_batch_size"]}]


def _described(summary):
    """Return the common facts of profiles in one line."""
    return (
        f"{summary['device']}, torch {summary['torch']}, {summary['model']}, "
        f"{summary['asked_batch_size']}x{summary['seq_len']} tokens a step, {summary['dataset']}, "
        f"commit {summary['commit'] or 'unknown'}"
    )


def _digits(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _label(summary):
    if summary["status"] != "ok" or summary["batch_size"] == summary["asked_batch_size"]:
        return summary["technique"]
    return f"{summary['technique']} (batch {summary['batch_size']})"
