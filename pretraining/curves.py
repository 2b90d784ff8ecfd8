"""Loss curves of training runs.

    .venv/bin/python -m pretraining.curves [FOLDER ...] [--live]

draws loss.png and loss.svg in each run's folder; without FOLDER, in those of all runs in
training/. --live draws again when there are new rows, until its standard input ends. A viewer that
reloads a changed picture follows the run.
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
from Utils.base.errors import exit_on_error

matplotlib.use("Agg")  # a picture, no window
SIZE = 10, 6  # inches
INTERVAL_S = 5  # between two reads of the rows
MEANS = 60  # points of the smoothed training loss


def draw(folder):
    """Write the curves of a run to its folder, as .png and .svg. Raises UserError."""
    rows = history.read(folder / "training.csv")
    if not rows:
        return
    figure = plot(rows, history.read_run(folder), folder.name)
    try:
        for kind in ("png", "svg"):
            with files.atomic_write(folder / f"loss.{kind}") as file:
                figure.savefig(file, format=kind, dpi=120, bbox_inches="tight")
    finally:
        plt.close(figure)


def plot(rows, run, name):
    """Return the figure of a run: losses over tokens, and below them the learning rate."""
    with plt.style.context("seaborn-v0_8-whitegrid"):
        figure, (upper, lower) = plt.subplots(2, 1, figsize=SIZE, sharex=True, height_ratios=[5, 1])

    # The training loss, and its means over equal parts of the run.
    tokens = _column(rows, "tokens")
    training = _column(rows, "training_loss")
    upper.plot(tokens, training, color="0.8", lw=0.8, label="training, each step")
    if len(rows) >= 2 * MEANS:
        x = [part.mean() for part in np.array_split(tokens, MEANS)]
        y = [part.mean() for part in np.array_split(training, MEANS)]
        upper.plot(x, y, color="C0", lw=1.6, label=f"training, {MEANS} means")

    # The validation loss, with its last value as text.
    validated = [row for row in rows if row["validation_loss"]]
    if validated:
        x = _column(validated, "tokens")
        y = _column(validated, "validation_loss")
        upper.plot(x, y, "o-", color="C1", ms=4, lw=1.6, label="validation, held-out text")
        upper.annotate(
            f"{y[-1]:.3f}",
            (x[-1], y[-1]),
            (0, 8),
            textcoords="offset points",
            ha="center",
            va="bottom",
            color="C1",
            fontweight="bold",
        )

    settings = run["settings"]
    techniques = ", ".join(run["techniques"]) or "no technique"
    setup = f"{settings['model']}, {settings['dataset']}, seed {settings['seed']}; {techniques}"
    upper.set_title(f"{name}\n{setup}", loc="left", fontsize="medium")
    upper.set_ylabel("loss (nats a token)")
    upper.legend(loc="upper right", frameon=False)

    lower.plot(tokens, _column(rows, "learning_rate"), color="0.4", lw=1.2)
    lower.set_ylim(bottom=0)
    lower.set_ylabel("learning\nrate")
    lower.set_xlabel("tokens seen")
    lower.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def follow(folder):
    """Draw when there are new rows, until standard input ends."""
    path = folder / "training.csv"
    drawn_size = 0
    while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
        size = path.stat().st_size if path.exists() else 0
        if size != drawn_size:
            draw(folder)
        drawn_size = size


def _column(rows, name):
    return np.array([float(row[name]) for row in rows])


def main(argv=None):
    parser = Parser("curves", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="folder of a run")
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
    with exit_on_error("curves"):
        main()
