"""Draws results.csv: step times as lines and as a heatmap, speedups and memory as bars, and, where
its runs were made, the ablation.

Each chart goes to plots/ as .png and .svg. One chart holds one device, one torch version, one
model, one shape and one commit: those of the newest run, or of the device that --device-name names.
"""

import textwrap

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import LogLocator, MaxNLocator

from Utils.analysis import ablation, selection
from Utils.analysis.intervals import NO_INTERVAL
from Utils.analysis.summary import MEMORY_KINDS, summarize
from Utils.base import command_line, errors, results
from Utils.base.command_line import Parser
from Utils.base.ladder import BASELINE
from Utils.draw import ablation_chart, style, svg
from Utils.draw.style import GREY

FLOOR = "0.35"  # the colour of the modelled floor
FARTHEST = 4  # times the longest bar that the axis is stretched to show it
MOST_LINES = 10  # in one panel
KINDS = dict(zip(MEMORY_KINDS, [*sns.color_palette("Set2", 3), "0.8"], strict=True))


def main(argv=None):
    """Draws the charts of a results file into plots/ and names what it wrote."""
    parser = Parser("plot_results.py", __doc__)
    command_line.add_selection(parser)
    parser.add_argument("--plotsprefix", default="", help="of the charts' file names")
    args = parser.parse_args(argv)

    known = results.read(args.results_file)
    rows, left_out = selection.select(known, args.device_name)
    records = results.records(args.results_file, rows.run_id.unique())
    lines = summarize(rows, records)
    drawings = {
        "step_times": draw_step_times,
        "heatmap": draw_heatmap,
        "speedup": draw_speedup,
        "memory": draw_memory,
    }
    for name, draw in drawings.items():
        style.save(draw(rows, lines), f"{args.plotsprefix}{name}")
    every, _ = selection.select(known, args.device_name, with_variants=True)
    if whole := ablation.whole_of(every):
        credits = ablation.credits(every, whole)
        style.save(ablation_chart.draw(every, credits, whole), f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)


def draw_step_times(rows, lines):
    """Milliseconds a step over the steps, a line a technique: the median of the rounds, and a
    band from the fastest round to the slowest. Of many, each in a panel beside its parent's."""
    timed = lines.index[lines.median_ms.notna()]
    if len(timed) > MOST_LINES:
        return _draw_step_times_apart(rows, lines.loc[timed])
    height = max(6, 0.3 * len(timed) + 0.8 * (len(lines) - len(timed)))  # of the legend
    figure, axes = style.figure(height, "Time of each step", selection.describe(rows))
    for name in timed:
        how = {"linestyle": style.styles().get(name, "-"), "label": _label(lines.loc[name])}
        _draw_steps(axes, rows, name, **how)
    _scale_steps(axes, rows, lines)
    axes.set_xlabel("step (grey: warm-up)")
    axes.set_ylabel("step time (ms)")
    _reasons(axes, lines)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def _draw_step_times_apart(rows, lines):
    said = "colour: the technique, and a band over the rounds; black, dashed: its parent"
    described = "Time of each step", said, selection.describe(rows)
    what = {"x": "step (grey: warm-up)", "y": "step time (ms)"}
    figure, panels = style.grid(len(lines), *described, **what)
    for axes, (name, line) in zip(panels, lines.iterrows(), strict=True):
        if line.parent in lines.index:
            before = _by_step(rows, line.parent)["median"]
            axes.plot(before.index, before, color="black", linestyle=(0, (2, 2)), linewidth=0.9)
        _draw_steps(axes, rows, name)
        _scale_steps(axes, rows, lines)
        axes.set_title(svg.label(line), loc="left", fontsize="small", pad=3)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if svg.is_tainted(line):
            place = {"transform": axes.transAxes, "ha": "right", "va": "top"}
            axes.text(0.97, 0.94, "tainted", fontsize="small", color="0.4", **place)
    return figure


def _draw_steps(axes, rows, name, **how):
    steps, colour = _by_step(rows, name), style.colours().get(name, GREY)
    axes.plot(steps.index, steps["median"], color=colour, linewidth=1.6, **how)
    axes.fill_between(steps.index, steps["min"], steps["max"], color=colour, alpha=0.2, lw=0)


def _scale_steps(axes, rows, lines):
    """Axes of steps and their times, and what of them is warm-up."""
    axes.axvspan(-0.5, _warmup(rows) - 0.5, color="0.9", zorder=0)
    measured = rows.step_ms[(rows.status == "ok") & (rows.phase == "timed")]
    if len(measured):
        axes.set_xlim(-0.5, rows.step.max() + 0.5)
        if lines.median_ms.max() > 4 * lines.median_ms.min():
            axes.set_yscale("log")
            axes.set_ylim(measured.min() / 1.2, measured.quantile(0.99) * 1.4)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        else:
            axes.set_ylim(0, measured.quantile(0.99) * 1.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_heatmap(rows, lines):
    """Milliseconds a step, technique by step: hiccups, drift and warm-up at a glance."""
    height, described = 1.6 + 0.5 * len(lines), selection.describe(rows)
    figure, axes = style.figure(height, "Time of each step", described)
    steps = {name: _by_step(rows, name)["median"] for name in lines.index}
    grid = pd.DataFrame(steps).T.reindex(lines.index).astype(float)
    measured = rows.step_ms[(rows.status == "ok") & (rows.phase == "timed")]
    low, high = np.percentile(measured, [2, 98]) if len(measured) else (0, 1)
    if len(grid.columns):
        grid.columns = grid.columns.astype(int)
        sns.heatmap(
            grid,
            ax=axes,
            cmap="viridis",
            norm=LogNorm(low, high) if high > 4 * low > 0 else Normalize(low, high),
            cbar_kws={"label": "step time (ms), colours end at p2 and p98", "extend": "both"},
        )
        scale = figure.axes[-1].yaxis
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter("{x:g}")
    axes.set_facecolor("0.93")
    axes.axvline(_warmup(rows), color="white", linewidth=2)
    axes.grid(False)
    axes.set_xlabel("step (left of the white line: warm-up)")
    axes.set_ylabel("")
    for y, name in enumerate(lines.index):
        if np.isnan(lines.median_ms[name]):
            style.beside(axes, 0.01, y + 0.5, style.reason(lines.loc[name]), ha="left", color=GREY)
    labels = [_label(line) for _, line in lines.iterrows()]
    axes.set_yticks([y + 0.5 for y in range(len(lines))], labels, rotation=0)
    axes.set_ylim(len(lines), 0)
    style.grey_labels(axes, lines.median_ms.isna())
    return figure


def draw_speedup(rows, lines):
    """Speedup over the baseline, a bar a technique, with its interval over rounds (with one round
    the spread of its steps), its parent's value, and beside it what it costs in memory and loss."""
    height, described = 1.8 + 0.5 * len(lines), selection.describe(rows)
    figure, axes = style.figure(height, "Speedup over the baseline", described)
    reference = lines.median_ms.get(BASELINE, np.nan)
    intervals = lines.speedup_low.notna().any()
    median = lines.speedup * lines.median_ms  # the baseline's, of as many tokens
    low = lines.speedup_low if intervals else median / lines.p80_ms
    high = lines.speedup_high if intervals else median / lines.p20_ms
    widest = np.nanmax([1, lines.speedup.max(), high.max()])
    for y, (name, line) in enumerate(lines.iterrows()):
        if np.isnan(line.median_ms) or np.isnan(line.speedup):
            why = style.reason(line) if np.isnan(line.median_ms) else "no baseline to compare with"
            axes.text(0.01 * widest, y, why, va="center", color=GREY)
        else:
            hatch = "///" if svg.is_tainted(line) else None
            colour = style.colours().get(name, GREY)
            axes.barh(
                y, line.speedup, color=colour, hatch=hatch, ec="white", lw=0, height=0.7, zorder=2
            )
            if not np.isnan(low[name]):
                axes.plot([low[name], high[name]], [y, y], color="black", lw=1.5, zorder=3)
            parent = lines.speedup.get(line.parent, np.nan)
            if not np.isnan(parent):
                axes.plot(parent, y, "D", color="white", mec="black", ms=6, zorder=4)
            right = np.nanmax([line.speedup, high[name], parent])
            text = f"{line.speedup:.2f}x"
            beyond = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
            axes.annotate(text, (right, y), (8, 0), **beyond)  # past the diamond's half
        style.beside(axes, 1.13, y, style.number(line.peak_memory_mib, ",.0f"))
        style.beside(axes, 1.22, y, style.number(line.loss, ".3f"))
        for x, word in ((1.25, line.parent_verdict), (1.43, line.parity)):
            word = "" if pd.isna(word) or word == NO_INTERVAL else word
            style.beside(axes, x, y, "\n".join(textwrap.wrap(word, 16)), ha="left", size="small")
    for x, title in ((1.13, "peak memory\n(MiB)"), (1.22, "loss\n(nats)")):
        style.beside(axes, x, -0.75, title, va="bottom", size="small")
    for x, title in ((1.25, "time against\nthe parent's"), (1.43, "what it\ncomputes")):
        style.beside(axes, x, -0.75, title, ha="left", va="bottom", size="small")
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    floor = reference / lines.floor_ms.min()  # the fastest precision's
    if not np.isnan(floor):
        if floor > FARTHEST * widest:
            text = f"modelled floor: {floor:.1f}x, off to the right"
            axes.text(0.99, 0.01, text, transform=axes.transAxes, ha="right", color=FLOOR)
        else:
            axes.axvline(floor, color=FLOOR, linestyle="--", linewidth=1.2, zorder=1)
            where = {"transform": axes.get_xaxis_transform(), "rotation": 90, "va": "bottom"}
            text = f"modelled floor: {floor:.1f}x "
            axes.text(floor, 0.01, text, ha="right", color=FLOOR, size="small", **where)
            widest = max(widest, floor / 1.08)
    axes.set_xlim(0, widest * 1.12)
    axes.set_yticks(range(len(lines)), [svg.label(line) for _, line in lines.iterrows()])
    axes.set_ylim(len(lines) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    whisker = (
        "95% interval over rounds" if intervals else "p20-p80 of the steps (one round: no interval)"
    )
    hatched = lines.apply(svg.is_tainted, axis=1).any()
    tainted = "; hatched: tainted runs among them" if hatched else ""
    axes.set_xlabel(
        "step time of the baseline / step time (x)\n"
        f"line: {whisker}; diamond: the parent's value{tainted}"
    )
    style.grey_labels(axes, lines.median_ms.isna())
    return figure


def draw_memory(rows, lines):
    """Peak memory, a bar a technique, stacked by kind; a tick where the measured peak is."""
    title = "Peak memory by kind"
    figure, axes = style.figure(1.8 + 0.5 * len(lines), title, selection.describe(rows))
    kinds = lines[list(MEMORY_KINDS)]
    widest = np.nanmax([1, lines.peak_memory_mib.max(), kinds.sum(axis=1).max()])
    unit, scale = ("GiB", 1024) if widest >= 4096 else ("MiB", 1)
    for y, (_, line) in enumerate(lines.iterrows()):
        if np.isnan(line.median_ms):
            axes.text(0.01 * widest / scale, y, style.reason(line), va="center", color=GREY)
            continue
        left = 0
        for kind, colour in KINDS.items():
            width = 0 if np.isnan(line[kind]) else line[kind] / scale
            axes.barh(y, width, left=left, color=colour, height=0.7, zorder=2)
            left += width
        peak = line.peak_memory_mib / scale
        if not left:
            axes.barh(y, peak, color=GREY, height=0.7, zorder=2)
        axes.plot([peak, peak], [y - 0.4, y + 0.4], color="black", lw=1.5, zorder=3)
        text = f"{peak:,.2f}" if scale > 1 else f"{peak:,.0f}"
        right = max(left, peak) + 0.015 * widest / scale
        axes.text(right, y, text, va="center", fontweight="bold")
    for kind, colour in KINDS.items():
        label = kind.removesuffix("_mib").replace("_", " ")
        if kind == "rest_mib":
            label += ": activations,\nworkspace, libraries"
        axes.barh(0, 0, color=colour, label=label)
    axes.plot([], [], "|", color="black", ms=12, mew=1.5, label="measured peak")
    if kinds.notna().any(axis=None):
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    axes.set_xlim(0, widest * 1.14 / scale)
    axes.set_yticks(range(len(lines)), [svg.label(line) for _, line in lines.iterrows()])
    axes.set_ylim(len(lines) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"memory ({unit}); median of the rounds")
    style.grey_labels(axes, lines.median_ms.isna())
    return figure


def _label(line):
    name = svg.label(line)
    return f"{name} (tainted)" if svg.is_tainted(line) else name


def _by_step(rows, name):
    """median, min and max of step_ms over the rounds, indexed by step."""
    own = rows[(rows.technique == name) & (rows.status == "ok")]
    return own.groupby("step").step_ms.agg(["median", "min", "max"])


def _warmup(rows):
    """Steps that the longest warm-up took."""
    warmup = rows[rows.phase == "warmup"]
    return 0 if warmup.empty else int(warmup.step.max()) + 1


def _reasons(axes, lines):
    """Puts techniques without timings into the legend, with their reason."""
    for name, line in lines.iterrows():
        if np.isnan(line.median_ms):
            label = "\n".join(textwrap.wrap(f"{name} ({style.reason(line)})", 32))
            axes.plot([], [], color=GREY, linestyle=":", label=label)


if __name__ == "__main__":
    with errors.one_line("plot_results.py"):
        main()
