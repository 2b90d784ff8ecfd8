"""Devices side by side: what each technique is worth on each of them, and how fast the best is.

    python -m Utils.gallery [--results-file results.csv]

Reads the submissions in results/ and the local results file. Each panel is one device with one
torch version, shape and commit; its speedups are paired within its own rounds, those of tainted
runs left out. Panels share the model and the shape that most of them have; what has another one is
left out and named.
"""

import sys
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from Utils import charts, ladder, results, settings, submission, summary
from Utils.errors import UserError, one_line

TICKS = (0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32)


def collect(results_file=None, folder=None):
    """The panels to draw, and sentences on what was left out: ([{device, shape, described,
    lines}], [sentence]). lines: of `summary.summarize`, without tainted runs.

    folder: of the submissions. Raises UserError where there is nothing to draw.
    """
    folder = submission.COLLECTION if folder is None else folder
    paths = sorted(folder.glob("*/*/results.csv"))
    if results_file is not None and results_file.exists():
        paths.append(results_file)
    panels, left_out = [], []
    for path in paths:
        try:
            rows, more = summary.select(results.read(path))
        except UserError as error:
            left_out.append(str(error))
            continue
        if more:
            left_out.append(f"{path}: {more.removeprefix('left out: ')}")
        records = results.records(path, rows.run_id.unique())
        rows = rows[(rows.status != "ok") | ~summary.is_tainted(rows, records)]
        panel = _panel(path, rows, records)
        if panel is None:
            left_out.append(f"{path}: no clean timings of {summary.BASELINE}")
        elif any(panel["described"] == other["described"] for other in panels):
            left_out.append(f"{path}: the same results as another's")
        else:
            panels.append(panel)
    if not panels:
        nothing = f"no results to draw in {folder} or {results_file}; make all writes some"
        raise UserError("; ".join(left_out) or nothing)
    shapes = [panel["shape"] for panel in panels]
    common = max(shapes, key=lambda shape: (shapes.count(shape), shapes[::-1].index(shape) == 0))
    for panel in panels:
        if panel["shape"] != common:
            left_out.append(
                f"{panel['device']}: {_shape(panel['shape'])}, where the others are "
                f"{_shape(common)}, which is no comparison"
            )
    return [panel for panel in panels if panel["shape"] == common], left_out


def _panel(path, rows, records):
    if rows.empty:
        return None
    lines = summary.summarize(rows, records)
    if np.isnan(lines.median_ms.get(summary.BASELINE, np.nan)):
        return None
    first = rows.iloc[0]
    return {
        "device": first.device,
        "shape": (first.model, int(summary.asked_batch(rows).iloc[0]), int(first.seq_len)),
        "described": summary.describe(rows),
        "rounds": rows["round"].nunique(),
        "torch": first.torch,
        "commit": first.commit,
        "lines": lines,
    }


def _shape(shape):
    model, batch, seq_len = shape
    return f"{model} {batch}x{seq_len}"


def draw(panels, left_out=()):
    """One panel a device, techniques in the same rows of all: speedups over the device's own
    baseline with their intervals, and above them what the best reaches."""
    sns.set_theme(style="whitegrid", rc={"svg.hashsalt": "plots", "svg.fonttype": "none"})
    shown = {name for panel in panels for name in panel["lines"].index} - {summary.BASELINE}
    known = ladder.techniques()
    names = [*(name for name in known if name in shown), *sorted(shown - {*known})]
    figure, grid = plt.subplots(
        1,
        len(panels),
        figsize=(3 + 3.6 * len(panels), 2.4 + 0.42 * len(names)),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axes, panel in zip(grid[0], panels, strict=True):
        _draw_panel(axes, panel, names)
    ends = np.array([x for panel in panels for x in _ends(panel)])
    low, high = ends.min() / 1.1, ends.max() * (ends.max() / ends.min()) ** 0.25 * 1.1
    for axes in grid[0]:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        ticks = [x for x in TICKS if low <= x <= high]
        axes.set_xticks(ticks, [f"{x:g}x" for x in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", visible=False)
    grid[0][0].set_yticks(range(len(names)), names)
    grid[0][0].set_ylim(len(names) - 0.5, -0.5)
    intervals = any(panel["lines"].speedup_low.notna().any() for panel in panels)
    spread = "line: 95% interval over its clean rounds" if intervals else summary.NO_INTERVAL
    notes = [f"speedup over the device's own baseline, {_shape(panels[0]['shape'])}; {spread}"]
    notes += [f"left out: {text}" for text in left_out]
    width = int(12 * (3 + 3.6 * len(panels)))
    notes = [line for text in notes for line in textwrap.wrap(_plain(text), width)]
    figure.suptitle("Devices side by side", x=0.01, ha="left", fontweight="bold")
    figure.supxlabel("\n".join(notes), fontsize="small", color="0.3", x=0.01, ha="left")
    figure.tight_layout()
    return figure


def _draw_panel(axes, panel, names):
    lines, colours = panel["lines"], charts.colours()
    same = lines[lines.parity.ne("model changed") & ~lines.loss_verdict.isin(("worse", "diverged"))]
    best = same.tokens_per_second.idxmax()
    title = textwrap.wrap(_plain(panel["device"]), 34)
    facts = [
        f"torch {panel['torch']}, commit {panel['commit'] or 'unknown'}, "
        f"{panel['rounds']} round{'s' * (panel['rounds'] > 1)}",
        f"best: {best}",
        f"{lines.tokens_per_second[best]:,.0f} tokens/s",
    ]
    axes.set_title("\n".join(title), loc="left", fontweight="bold", pad=52)
    axes.annotate(
        _plain("\n".join(facts)),
        (0, 1),
        (0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        size="small",
        color="0.3",
    )
    axes.axvline(1, color="0.3", lw=1, zorder=1)
    for y, name in enumerate(names):
        line = lines.loc[name] if name in lines.index else None
        if line is None or np.isnan(line.speedup):
            why = "not run" if line is None else summary.reason(line)
            why = _plain(textwrap.shorten(why, 40, placeholder=" ..."))
            how = {"ha": "left", "size": "x-small", "color": charts.GREY}
            charts.beside(axes, 0.02, y, why, bbox={"fc": "white", "lw": 0, "pad": 1}, **how)
            continue
        colour = colours.get(name, charts.GREY)
        axes.plot([line.speedup_low, line.speedup_high], [y, y], color=colour, lw=2, zorder=2)
        axes.plot(line.speedup, y, "o", color=colour, ms=7, zorder=3)
        right = np.nanmax([line.speedup, line.speedup_high])
        how = {"textcoords": "offset points", "va": "center", "size": "small"}
        axes.annotate(f"{line.speedup:.2f}x", (right, y), (6, 0), **how)


def _ends(panel):
    """All that a panel has to show on its axis, 1 included."""
    lines = panel["lines"]
    values = lines[["speedup", "speedup_low", "speedup_high"]].to_numpy().ravel()
    return [1, *values[np.isfinite(values)]]


def _plain(text):
    return text.replace("$", r"\$")  # matplotlib would set what stands between two as a formula


def main(argv=None):
    """Draws the submissions in results/ and the local results side by side into plots/gallery."""
    parser = settings.Parser("gallery", main.__doc__)
    settings.add_results_file(parser)
    parser.add_argument("--plotsprefix", default="", help="of the chart's file name")
    args = parser.parse_args(argv)
    panels, left_out = collect(args.results_file)
    charts.save(draw(panels, left_out), f"{args.plotsprefix}gallery")
    for text in left_out:
        print(f"left out: {text}")


if __name__ == "__main__":
    with one_line("gallery"):
        sys.exit(main())
