"""Charts of scripts: step times, a heatmap of them, memory, speedups."""

import textwrap
from operator import attrgetter

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import LogLocator, MaxNLocator

from Utils.analysis import intervals
from Utils.analysis.result_tables import four_digits
from Utils.base.text import number, short
from Utils.draw import chart_style, ratio_charts
from Utils.results import selection

COLUMNS = 4  # panels in a row
LINEAR = 4  # a scale is logarithmic if its end is more than this many times its start
STEPS = 500  # most steps in a line or a row; if there are more, consecutive ones are merged
MEMORY = {  # label and colour of each kind
    "weights_mib": ("weights", chart_style.BLUE),
    "gradients_mib": ("gradients", chart_style.SKY),
    "optimizer_state_mib": ("optimizer state", chart_style.ORANGE),
    "rest_mib": ("rest: activations,\nworkspace, libraries", "0.85"),
}


def step_times(rows, scripts):
    """Draw milliseconds a step over the steps, a panel a technique beside the script before."""
    scripts, _ = _measured(scripts)
    names = {script.name for script in scripts}
    times, _ = intervals.by_step(rows, STEPS)
    height = -(-len(scripts) // COLUMNS)  # in panels
    figure, panels = chart_style.figure(
        0.4 + 1.7 * height,
        _time_title(scripts),
        "line: median of the rounds; band: all rounds; dashed: the script before; grey: warm-up",
        selection.description(rows),
        rows=height,
        columns=COLUMNS,
        room=16,
    )
    figure.subplots_adjust(hspace=0.4, wspace=0.08)

    # All panels share the scales of the first.
    first = panels[0]
    numbers = times.index.get_level_values("step")
    room = np.ptp(numbers) / 30
    first.set_xlim(numbers.min() - room, numbers.max() + room)
    first.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    low, high = times["min"].min(), times["max"].max()
    first.set_ylim(0, high * 1.1)
    if high > LINEAR * low > 0:
        first.set(yscale="log", ylim=(low / 1.3, high * 1.4))
        subs = (1,) if high > 100 * low else (1, 2, 5)
        first.yaxis.set_major_locator(LogLocator(subs=subs))
        first.yaxis.set_major_formatter("{x:,g}")
        first.yaxis.set_minor_formatter("")

    for position, script in enumerate(scripts):
        axes = panels[position]
        is_lowest = position + COLUMNS >= len(scripts)
        steps = times.loc[script.name]
        if script.parent in names:
            before = times["median"].loc[script.parent]
            axes.plot(before.index, before, color="black", linestyle=(0, (2, 2)), linewidth=0.9)
        axes.plot(steps.index, steps["median"], color=chart_style.BLUE, linewidth=1.6)
        axes.fill_between(
            steps.index, steps["min"], steps["max"], color=chart_style.BLUE, alpha=0.2, lw=0
        )
        axes.axvspan(steps.index.min() - 0.5, -0.5, color="0.9", zorder=0)
        axes.set_title(_label(script), loc="left", fontsize="small", pad=3)
        axes.set(
            ylabel="ms" if position % COLUMNS == 0 else "",
            xlabel="step" if is_lowest else "",
        )
        axes.tick_params(labelsize="small", labelbottom=is_lowest)
        axes.grid(False)
        axes.spines[["top", "right"]].set_visible(False)

    for unused in panels[len(scripts) :]:
        unused.set_axis_off()
    return figure


def heatmap(rows, scripts):
    """Draw milliseconds a step, technique by step, on a scale for timed steps."""
    scripts, without_value = _measured(scripts)
    figure, (axes,) = chart_style.figure(
        1.6 + 0.4 * len(scripts),
        _time_title(scripts),
        selection.description(rows),
    )
    times, size = intervals.by_step(rows, STEPS)
    times = times["median"].unstack("step").reindex([script.name for script in scripts])
    timed = times.loc[:, times.columns >= 0]
    times = times.loc[:, times.columns >= -timed.columns.max() / 2]  # most of the warm-up
    ends = timed.quantile([0.02, 0.98], axis=1)  # each script's range without outliers
    low, high = ends.min(axis=None), ends.max(axis=None)
    norm, ticks = Normalize(low, high), None
    if high > LINEAR * low > 0:
        norm, ticks = LogNorm(low, high), LogLocator(subs=(1, 2, 3, 5, 7))

    mesh = axes.pcolormesh(
        [*times.columns, times.columns[-1] + size],
        np.arange(len(scripts) + 1) - 0.5,
        times,
        cmap="viridis",
        norm=norm,
        rasterized=True,
    )
    bar = figure.colorbar(
        mesh, ax=axes, ticks=ticks, label="ms a step", extend="both", pad=0.02, format="{x:g}"
    )
    bar.minorticks_off()
    axes.axvline(0, color="white", lw=4)

    axes.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step; before 0: the end of the warm-up")
    chart_style.write_below(axes, without_value)
    chart_style.name_rows(axes, list(map(_label, scripts)), top=-0.5)
    return figure


def memory(rows, scripts):
    """Draw peak memory, a bar a technique, stacked by kind; a tick marks the measured peak."""
    scripts, without_value = _measured(scripts)
    unit, scale, form = _memory_unit(rows)

    def text_of(mib):
        return f"{number(mib / scale, form)} {unit}"

    figure, (axes,) = chart_style.figure(
        1.6 + 0.36 * len(scripts),
        _title("Peak memory by kind", scripts, text_of, "peak_memory_mib"),
        selection.description(rows),
    )
    peaks = np.array([script.peak_memory_mib for script in scripts]) / scale

    y = np.arange(len(scripts))
    left = np.zeros(len(scripts))
    for kind, (label, colour) in MEMORY.items():
        sizes = np.nan_to_num([getattr(script.recorded, kind) for script in scripts]) / scale
        axes.barh(y, sizes, left=left, color=colour, height=0.7, zorder=2, label=label)
        left = left + sizes
    unknown = np.where(left == 0, np.nan_to_num(peaks), 0)
    axes.barh(y, unknown, color=chart_style.GREY, height=0.7, zorder=2)
    axes.plot(peaks, y, "|", color="black", ms=16, mew=1.5, zorder=3, label="measured peak")

    right = np.fmax(left, peaks)
    for row, peak in enumerate(peaks):
        axes.annotate(
            number(peak, form),
            (right[row], row),
            (6, 0),
            "data",
            "offset points",
            va="center",
            weight="bold",
        )

    if left.any():
        axes.legend(**chart_style.LEGEND_BESIDE)
    axes.set_xlim(0, max(right.max(), 1e-3) * 1.14)
    axes.set_xlabel(f"memory ({unit}); median of the runs")
    chart_style.write_below(axes, without_value)
    chart_style.name_rows(axes, list(map(_label, scripts)))
    return figure


def speedup(rows, scripts):
    """Draw the speedup of each technique over the script before it, with its interval.

    Columns beside it give the speedup over the baseline, memory and loss.
    """
    scripts, without_value = _measured(scripts)
    names = []
    for script in scripts:
        branch = f"\nover {script.branches_from}" if script.branches_from else ""
        names.append(_label(script) + branch)

    ratios = [script.parent_speedup for script in scripts]
    unit, scale, form = _memory_unit(rows)
    memory = [number(script.peak_memory_mib / scale, form) for script in scripts]
    is_of_tokens = any(script.unit == "tokens" for script in scripts)
    nats = "\n(nats)" if is_of_tokens else ""  # otherwise the unit is unknown
    columns = {
        "over the\nscript before": list(map(str, ratios)),
        "over the\nbaseline": [script.speedup.text for script in scripts],
        f"peak memory\n({unit})": memory,
        f"loss{nats}": [number(script.loss, ".3f") for script in scripts],
    }

    title = "Speedup over the script before"
    higher = intervals.Ratio.higher
    faster = [s for s in scripts if not s.problem and s.speedup.verdict == higher]
    if faster:
        best = max(faster, key=lambda script: script.speedup.value)
        title += f": {best.label} is {best.speedup.text} as fast as {best.base}"
    figure, axes = ratio_charts.forest(
        names,
        ratio_charts.by_verdict(ratios),
        [title, selection.description(rows)],
        "step time of the script before / step time (x)",
        columns,
    )
    chart_style.write_below(axes, without_value)

    for y, (script, ratio) in enumerate(zip(scripts, ratios, strict=True)):
        reason = script.reason
        if not ratio and not reason:
            reason = "the script before was not measured"
            if script.name == script.base:
                reason = "the baseline"
        if reason:
            chart_style.no_value(axes, y, reason)
    return figure


def _title(topic, scripts, text_of, figure):
    """Return a title with the baseline and the script that has the least of a figure.

    A script with a problem, as it trains something else, is not named.
    """
    value_of = attrgetter(figure)
    usable = [script for script in scripts if not script.problem and value_of(script) >= 0]
    usable.sort(key=value_of)
    named = [script for script in usable if script.name == script.base] + usable[:1]
    texts = dict.fromkeys(f"{text_of(value_of(script))} in {script.label}" for script in named)
    return f"{topic}: {', '.join(texts)}" if texts else topic


def _time_title(scripts):
    return _title("Time of each step", scripts, lambda ms: f"{four_digits(ms)} ms", "step_ms")


def _label(script):
    """Return a technique's name, with its batch if that is its own."""
    batch = "" if np.isnan(script.own_batch) else f" (batch {script.own_batch:.0f})"
    return f"{script.label}{batch}"


def _memory_unit(rows):
    """Return the unit of memory on the device of rows, in MiB, and the format of its values."""
    on_gpu = rows.reserved_memory_mib.notna().any()
    return ("GiB", 1024, ",.2f") if on_gpu else ("MiB", 1, ",.0f")


def _measured(scripts):
    """Return the scripts with a time, or all if none has, and text on those left out."""
    timed = [script for script in scripts if script.is_timed]
    if not timed or len(timed) == len(scripts):
        return scripts, ""
    texts = [
        textwrap.fill(f"{_label(script)}: {short(script.reason)}", 100)
        for script in scripts
        if not script.is_timed
    ]
    return timed, "\n".join(["Not measured:", *texts])


CHARTS = {"step_times": step_times, "heatmap": heatmap, "memory": memory, "speedup": speedup}


def timed_charts(scripts):
    """Return CHARTS; without any timing only the chart of speedups, which gives the reason."""
    return CHARTS if any(script.is_timed for script in scripts) else {"speedup": speedup}
