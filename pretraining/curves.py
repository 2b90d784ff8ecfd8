"""Loss curves of training runs.

    python -m pretraining.curves [FOLDER ...] [--live]

draws loss.png and loss.svg in each run's folder; without a name, in those of all runs in
training/. --live draws again whenever there are new rows, until its standard input ends: a viewer
that reloads a picture when it changes follows the run.
"""

import select
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import EngFormatter

from pretraining import history
from Utils.base import files
from Utils.base.command_line import Parser
from Utils.base.errors import one_line

matplotlib.use("Agg")  # a picture, no window
SIZE = 10, 6  # inches
INTERVAL_S = 5  # between two looks at the rows
MEANS = 60  # of the training loss, each over a part of the steps


def draw(folder):
    """Write the curves of a run to its folder, as .png and .svg. Raises UserError."""
    rows = history.read(folder / "training.csv")
    if not rows:
        return
    figure = plot(rows, files.read_json(folder / "run.json"), folder.name)
    try:
        for kind in ("png", "svg"):
            with files.written_whole(folder / f"loss.{kind}") as file:
                figure.savefig(file, format=kind, dpi=120, bbox_inches="tight")
    finally:
        plt.close(figure)


def plot(rows, run, name):
    """Return the figure of a run: losses over tokens, and below them the learning rate."""
    with plt.style.context("seaborn-v0_8-whitegrid"):
        figure, (upper, lower) = plt.subplots(2, 1, figsize=SIZE, sharex=True, height_ratios=[5, 1])
    tokens, training = _column(rows, "tokens"), _column(rows, "training_loss")
    upper.plot(tokens, training, color="0.8", lw=0.8, label="training, each step")
    if len(rows) >= 2 * MEANS:
        parts = zip(np.array_split(tokens, MEANS), np.array_split(training, MEANS), strict=True)
        means = np.array([(x.mean(), y.mean()) for x, y in parts])
        upper.plot(*means.T, color="C0", lw=1.6, label=f"training, {MEANS} means")
    if validated := [row for row in rows if row["validation_loss"]]:
        seen, losses = _column(validated, "tokens"), _column(validated, "validation_loss")
        upper.plot(seen, losses, "o-", color="C1", ms=4, lw=1.6, label="validation, held-out text")
        beside = {"textcoords": "offset points", "color": "C1", "fontweight": "bold"}
        last = seen[-1], losses[-1]
        upper.annotate(f"{losses[-1]:.3f}", last, (0, 8), ha="center", va="bottom", **beside)
    settings = run["settings"]
    techniques = ", ".join(run["techniques"]) or "no technique"
    described = f"{settings['model']}, {settings['dataset']}, seed {settings['seed']}; {techniques}"
    upper.set_title(f"{name}\n{described}", loc="left", fontsize="medium")
    upper.set_ylabel("loss (nats a token)")
    upper.legend(loc="upper right", frameon=False)
    lower.plot(tokens, _column(rows, "learning_rate"), color="0.4", lw=1.2)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("learning\nrate")
    lower.set_xlabel("tokens seen")
    lower.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def follow(folder):
    """Draw whenever there are new rows, until standard input ends."""
    size = 0
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        path, before = folder / "training.csv", size
        size = path.stat().st_size if path.exists() else 0
        if size != before:
            draw(folder)


def _column(rows, name):
    return np.array([float(row[name]) for row in rows])


def main(argv=None):
    parser = Parser("curves", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of a run")
    parser.add_argument("--live", action="store_true", help="draw again as rows come")
    args = parser.parse_args(argv)
    folders = args.folders or [path.parent for path in sorted(Path("training").glob("*/run.json"))]
    for folder in folders:
        if args.live:
            follow(folder)
        else:
            draw(folder)
            print(folder / "loss.png")


if __name__ == "__main__":
    with one_line("curves"):
        sys.exit(main())
