"""Draws results.csv: step times as lines and as a heatmap, speedups as bars.

Each chart goes to plots/ as .png and .svg. One chart holds one device, one torch version, one
model, one shape and one commit: those of the newest run, or of the device that --device-name names.
"""

import textwrap

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import LogNorm, Normalize

from Utils import charts, results, settings, summary
from Utils.charts import GREY, beside, colours, grey_labels, number, reason
from Utils.errors import one_line


def main(argv=None):
    """Draws the charts of a results file into plots/ and names what it wrote."""
    parser = settings.Parser("plot_results.py", __doc__)
    settings.add_selection(parser)
    parser.add_argument("--plotsprefix", default="", help="of the charts' file names")
    args = parser.parse_args(argv)

    rows, left_out = summary.select(results.read(args.results_file), args.device_name)
    lines = summary.summarize(rows)
    drawings = {"step_times": draw_step_times, "heatmap": draw_heatmap, "speedup": draw_speedup}
    for name, draw in drawings.items():
        charts.save(draw(rows, lines), f"{args.plotsprefix}{name}")
    if left_out:
        print(left_out)


def draw_step_times(rows, lines):
    """Milliseconds a step over the steps, a line a technique: the median of the rounds, and a
    band from the fastest round to the slowest."""
    timed = lines.index[lines.median_ms.notna()]
    figure, axes = charts.figure(6, "Time of each step", summary.describe(rows))
    for name in timed:
        steps = _by_step(rows, name)
        colour = colours().get(name, GREY)
        axes.plot(steps.index, steps["median"], color=colour, label=name, linewidth=1.6)
        axes.fill_between(steps.index, steps["min"], steps["max"], color=colour, alpha=0.2, lw=0)
    warmup = _warmup(rows)
    axes.axvspan(-0.5, warmup - 0.5, color="0.9", zorder=0)
    if warmup:
        axes.text(
            -0.4, 0.99, "warm-up", transform=axes.get_xaxis_transform(), va="top", color="0.4"
        )
    measured = rows.step_ms[(rows.status == "ok") & (rows.phase == "timed")]
    if len(measured):
        axes.set_xlim(-0.5, rows.step.max() + 0.5)
        if lines.median_ms.max() > 4 * lines.median_ms.min():
            axes.set_yscale("log")
            axes.set_ylim(measured.min() / 1.2, measured.quantile(0.99) * 1.4)
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
        else:
            axes.set_ylim(0, measured.quantile(0.99) * 1.2)
    axes.set_xlabel("step")
    axes.set_ylabel("step time (ms)")
    _reasons(axes, lines)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def draw_heatmap(rows, lines):
    """Milliseconds a step, technique by step: hiccups, drift and warm-up at a glance."""
    height, described = 1.6 + 0.5 * len(lines), summary.describe(rows)
    figure, axes = charts.figure(height, "Time of each step", described)
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
            beside(axes, 0.01, y + 0.5, reason(lines.loc[name]), ha="left", color=GREY)
    axes.set_yticks([y + 0.5 for y in range(len(lines))], lines.index, rotation=0)
    axes.set_ylim(len(lines), 0)
    grey_labels(axes, lines.median_ms.isna())
    return figure


def draw_speedup(rows, lines):
    """Speedup over the baseline, a bar a technique, with its interval over rounds (with one round
    the spread of its steps), its parent's value, and beside it what it costs in memory and loss."""
    height, described = 1.8 + 0.5 * len(lines), summary.describe(rows)
    figure, axes = charts.figure(height, "Speedup over the baseline", described)
    reference = lines.median_ms.get(summary.BASELINE, np.nan)
    intervals = lines.speedup_low.notna().any()
    low = lines.speedup_low if intervals else reference / lines.p80_ms
    high = lines.speedup_high if intervals else reference / lines.p20_ms
    widest = np.nanmax([1, lines.speedup.max(), high.max()])
    for y, (name, line) in enumerate(lines.iterrows()):
        if np.isnan(line.median_ms) or np.isnan(line.speedup):
            why = reason(line) if np.isnan(line.median_ms) else "no baseline to compare with"
            axes.text(0.01 * widest, y, why, va="center", color=GREY)
        else:
            axes.barh(y, line.speedup, color=colours().get(name, GREY), height=0.7, zorder=2)
            if not np.isnan(low[name]):
                axes.plot([low[name], high[name]], [y, y], color="black", lw=1.5, zorder=3)
            parent = lines.speedup.get(line.parent, np.nan)
            if not np.isnan(parent):
                axes.plot(parent, y, "D", color="white", mec="black", ms=6, zorder=4)
            right = np.nanmax([line.speedup, high[name], parent])
            text = f"{line.speedup:.2f}x"
            axes.text(right + 0.015 * widest, y, text, va="center", fontweight="bold")
        beside(axes, 1.13, y, number(line.peak_memory_mib, ",.0f"))
        beside(axes, 1.24, y, number(line.loss, ".3f"))
    for x, title in ((1.13, "peak memory\n(MiB)"), (1.24, "loss\n(nats)")):
        beside(axes, x, -0.75, title, va="bottom", size="small")
    axes.axvline(1, color="0.3", linewidth=1, zorder=1)
    axes.set_xlim(0, widest * 1.12)
    axes.set_yticks(range(len(lines)), lines.index)
    axes.set_ylim(len(lines) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    whisker = (
        "95% interval over rounds" if intervals else "p20-p80 of the steps (one round: no interval)"
    )
    axes.set_xlabel(
        f"step time of the baseline / step time (x)\nline: {whisker}; diamond: the parent's value"
    )
    grey_labels(axes, lines.median_ms.isna())
    return figure


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
            label = "\n".join(textwrap.wrap(f"{name} ({reason(line)})", 32))
            axes.plot([], [], color=GREY, linestyle=":", label=label)


if __name__ == "__main__":
    with one_line("plot_results.py"):
        main()
