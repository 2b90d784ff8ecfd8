"""The chart of a step's time by kind of work."""

import seaborn as sns

from Utils.base.text import brief
from Utils.draw import chart_style


def draw(summaries, kinds):
    """Draw each technique's kinds of work stacked: milliseconds a step, of as many tokens.

    kinds: names of the kinds in their order, with their words for the legend.
    """
    colours = dict(zip(kinds, sns.color_palette("Set2", 8), strict=False))
    colours |= {"copies": "0.45", "communication": "0.25", "other": "0.1", "idle": "0.88"}
    measured = [summary for summary in summaries if summary["status"] == "ok"]
    title = "Step time by kind of work"
    height = 1.8 + 0.5 * len(summaries)
    figure, axes = chart_style.figure(height, title, *(map(_described, measured[:1])))
    widths = [_per_batch(summary) * summary["profile"]["mean_step_ms"] for summary in measured]
    widest = max(widths, default=1)
    for y, summary in enumerate(summaries):
        if summary["status"] != "ok":
            axes.text(0.01 * widest, y, brief(summary["note"]), va="center", color=chart_style.GREY)
            continue
        left = 0.0
        for kind, facts in summary["profile"]["kinds"].items():
            width = facts["ms"] * _per_batch(summary)
            axes.barh(y, width, left=left, color=colours[kind], height=0.7, zorder=2)
            if width > 0.06 * widest:
                dark = kind in ("copies", "communication", "other")
                how = {"color": "white" if dark else "black", "size": "small", "zorder": 3}
                axes.text(left + width / 2, y, _digits(width), ha="center", va="center", **how)
            left += width
        axes.text(left + 0.015 * widest, y, _digits(left), va="center", fontweight="bold")
    for kind, label in kinds.items():
        if any(summary["profile"]["kinds"][kind]["ms"] for summary in measured):
            axes.barh(0, 0, color=colours[kind], label=label)
    if measured:
        axes.legend(**chart_style.BESIDE)
    axes.set_xlim(0, widest * 1.12)
    axes.set_xlabel("ms per step under the profiler, which slows it; idle: nothing is computed")
    missing = [summary["status"] != "ok" for summary in summaries]
    chart_style.name_rows(axes, [_name(summary) for summary in summaries], missing)
    return figure


def _described(summary):
    return (
        f"{summary['device']}, torch {summary['torch']}, {summary['model']}, "
        f"{summary['asked_batch_size']}x{summary['seq_len']} tokens a step, {summary['dataset']}, "
        f"{summary['profile']['steps']} steps each, commit {summary['commit'] or 'unknown'}"
    )


def _digits(ms):
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _per_batch(summary):
    """Return the factor that scales a step's times to the requested batch."""
    return summary["asked_batch_size"] / summary["batch_size"]


def _name(summary):
    if summary["status"] != "ok" or _per_batch(summary) == 1:
        return summary["technique"]
    return f"{summary['technique']} (batch {summary['batch_size']})"
