"""What all charts share: their size, title, colours, words, and how they are saved."""

import textwrap
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.text import Text

from Utils.analysis import tables
from Utils.base import ladder
from Utils.base.errors import UserError

matplotlib.use("Agg")
FOLDER = Path("plots")
GREY = "0.55"
WIDTH = 10  # inches
COLUMNS = 4  # of a grid of panels


def figure(height, title, *described):
    """A figure of that height in inches and its axes, with a title and, below it, lines that say
    what is shown."""
    figure, axes = panels(1, 1, height)
    _head(axes[0], title, described)
    return figure, axes[0]


def grid(count, title, *described, x, y):
    """A figure of so many panels with the same scales, and a list of their axes, from the left and
    from above, with a title, lines that say what is shown, and what the axes x and y are."""
    rows = -(-count // COLUMNS)
    figure, axes = panels(rows, COLUMNS, 1.7 * rows)
    figure.subplots_adjust(hspace=0.3, wspace=0.08)
    for unused in axes[count:]:
        unused.set_axis_off()
    for lowest in axes[max(0, count - COLUMNS) : count]:
        lowest.xaxis.set_tick_params(labelbottom=True)
        lowest.set_xlabel(x, fontsize="small")
    for first in axes[:count:COLUMNS]:
        first.set_ylabel(y, fontsize="small")
    for one in axes[:count]:
        one.tick_params(labelsize="small")
    _head(axes[0], title, described, room=16)  # the panels have titles of their own
    return figure, axes[:count]


def panels(rows, columns, height):
    sns.set_theme(style="whitegrid", rc={"svg.hashsalt": "plots", "svg.fonttype": "none"})
    size = {"figsize": (WIDTH, height), "squeeze": False}
    figure, axes = plt.subplots(rows, columns, sharex=True, sharey=True, **size)
    return figure, list(axes.flat)


def _head(axes, title, described, room=0):
    """Writes above the axes, with so much room in points below the text."""
    subtitle = [line for text in described for line in textwrap.wrap(text, 110)]
    above = {"xycoords": "axes fraction", "textcoords": "offset points"}
    said = {"fontsize": "small", "color": "0.3", "linespacing": 1.2}
    axes.annotate("\n".join(subtitle), (0, 1), (0, room + 6), **said, **above)
    place = 0, room + 10 + 13 * len(subtitle)
    axes.annotate(title, (0, 1), place, fontweight="bold", **above)


def save(figure, name):
    """Write the figure to plots/ as .png, with all its words as description, and .svg, and print
    their paths. Raises UserError."""
    try:
        FOLDER.mkdir(exist_ok=True)
        for kind in ("png", "svg"):
            path = FOLDER / f"{name}.{kind}"
            said = " ".join(text.get_text() for text in figure.findobj(Text) if text.get_text())
            metadata = {"Date": None} if kind == "svg" else {"Software": None, "Description": said}
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
    return brief(tables.reason(line))


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
