"""Size, title, colours and words of all charts, and how they are saved."""

import io
import textwrap

import matplotlib
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.text import Text

from Utils.base import files, paths
from Utils.base.errors import say
from Utils.base.text import HOMES

matplotlib.use("Agg")
FOLDER = paths.OUTPUT / "plots"
# Colours that differ in lightness too, so that they are told apart without red or green.
BLUE, SKY, ORANGE, RED, GREY = "#0072b2", "#56b4e9", "#e69f00", "#c8501e", "0.55"
WIDTH = 10  # inches
LEGEND_BESIDE = {
    "loc": "upper left",
    "bbox_to_anchor": (1.01, 1),
    "frameon": False,
}  # a legend
BOX = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # box of a text, hides the grid


def figure(height, title, *described, rows=1, columns=1, room=0, width=WIDTH):
    """Return a figure and the list of its axes, which share their scales.

    height, width: in inches.
    described: lines below the title.
    room: points between these lines and the axes.
    """
    settings = {
        "svg.hashsalt": "plots",
        "svg.fonttype": "none",
        "font.sans-serif": ["DejaVu Sans"],
        "text.parse_math": False,  # otherwise text between two dollars is a formula
    }
    sns.set_theme(style="whitegrid", rc=settings)
    figure, panels = plt.subplots(
        rows, columns, sharex=True, sharey=True, figsize=(width, height), squeeze=False
    )
    axes = list(panels.flat)
    described = [text for text in described if text]
    figure.set_label("\n".join([title, *described]))

    # Home folders are replaced before wrapping, which could split their names.
    subtitle = []
    for text in described:
        subtitle += textwrap.wrap(HOMES.sub("~", text), int(12 * width), break_on_hyphens=False)

    axes[0].annotate(
        "\n".join(subtitle),
        (0, 1),
        (0, room + 6),
        "axes fraction",
        "offset points",
        fontsize="small",
        color="0.3",
        linespacing=1.2,
    )
    offset = 0, room + 10 + 13 * len(subtitle)
    axes[0].annotate(title, (0, 1), offset, "axes fraction", "offset points", fontweight="bold")
    return figure, axes


def write_below(axes, text):
    """Write lines below the label of the horizontal axis."""
    axes.annotate(
        text,
        (0, 0),
        (0, -64),
        "axes fraction",
        "offset points",
        va="top",
        size="small",
        color="0.3",
    )


def save(figure, name):
    """Write a figure, a .png with its words, to plots/ and print the paths. Raises UserError."""
    words = " ".join(text.get_text() for text in figure.findobj(Text) if text.get_text())
    formats = {
        FOLDER / f"{name}.png": {"Software": files.MARK, "Description": words},
        FOLDER / f"{name}.svg": {"Creator": files.MARK, "Date": None},
    }

    for path in formats:
        files.claim(path)
    for path, metadata in formats.items():
        kind = path.suffix[1:]
        with files.atomic_write(path) as file:
            figure.savefig(file, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
        say(path)
    plt.close(figure)


def svg(figure):
    """Return a figure as the text of an SVG file, and close it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", dpi=100, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def beside(axes, x, y, text, ha="right", va="center", **look):
    """Put text on the height y, at x as a fraction of the axes' width."""
    axes.text(x, y, text, transform=axes.get_yaxis_transform(), ha=ha, va=va, **look)


def no_value(axes, y, reason):
    """Write in a row why it has no value."""
    text = textwrap.shorten(HOMES.sub("~", reason), 100, placeholder=" ...")
    text = textwrap.fill(text, 66, break_on_hyphens=False)  # two lines
    beside(axes, 0.01, y, text, bbox=BOX, ha="left", size="small", color=GREY)


def name_rows(axes, labels, top=-0.6):
    """Label the rows from the top down. top: y of the upper end of the axes."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, top)
    axes.grid(axis="y", visible=False)
