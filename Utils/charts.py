"""What all charts share: their size, title, colours, words, and how they are saved."""

import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from Utils import ladder, summary
from Utils.errors import UserError

FOLDER = Path("plots")
GREY = "0.55"
WIDTH = 10  # inches


def figure(height, title, *described):
    """A figure of that height in inches and its axes, with a title and, below it, lines that say
    what is shown."""
    sns.set_theme(style="whitegrid", rc={"svg.hashsalt": "plots", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(WIDTH, height))
    subtitle = [line for text in described for line in textwrap.wrap(text, 110)]
    axes.set_title("\n".join(subtitle), loc="left", fontsize="small", color="0.3")
    above = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(title, (0, 1), (0, 10 + 14 * len(subtitle)), fontweight="bold", **above)
    return figure, axes


def save(figure, name):
    """Writes the figure to plots/ as .png and .svg and prints their paths. Raises UserError."""
    try:
        FOLDER.mkdir(exist_ok=True)
        for kind in ("png", "svg"):
            path = FOLDER / f"{name}.{kind}"
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata)
            print(path)
    except OSError as error:
        raise UserError(f"{error.filename or FOLDER}: {error.strerror}") from None
    finally:
        plt.close(figure)


def colours():
    """One colour a technique in all charts, by its place: first those of the ladder, whose colours
    stay what they are, then those of beyond/. A technique whose script is not here has none."""
    names = sorted(ladder.techniques().values(), key=lambda technique: not technique.at_top_level)
    names = [technique.name for technique in names]
    palette = sns.color_palette("colorblind", 10)
    more = sns.husl_palette(max(0, len(names) - 10), s=0.7, l=0.5)
    palette += more[::3] + more[1::3] + more[2::3]  # so that neighbours differ
    return dict(zip(names, palette, strict=False))


def styles():
    """How each technique's line is drawn: beyond ten, colours alone are too alike."""
    return {name: "-" if i < 10 else ("--", "-.", ":")[i % 3] for i, name in enumerate(colours())}


def reason(line):
    """Why a technique, a line of summary.summarize, has no timing, in 100 letters at most, on one
    line or two."""
    return brief(summary.reason(line))


def brief(text):
    """A text's first 100 letters, on one line or two."""
    text = textwrap.shorten(text, 100, placeholder=" ...")
    return textwrap.fill(text, 66, break_on_hyphens=False)


def beside(axes, x, y, text, **how):
    """Puts text on the height y, at x as a fraction of the axes' width."""
    how = {"ha": "right", "va": "center", **how}
    axes.text(x, y, text, transform=axes.get_yaxis_transform(), **how)


def grey_labels(axes, missing):
    """Greys the names of the techniques for which `missing`, one bool each, is true."""
    for label, grey in zip(axes.get_yticklabels(), missing, strict=True):
        if grey:
            label.set_color(GREY)


def number(value, form):
    return "" if np.isnan(value) else format(value, form)
