"""Tables and sentences: fitted to the width of a terminal, as Markdown for a pipe or a file."""

import re
import shutil
import sys
import textwrap

import numpy as np
from tabulate import tabulate

WIDEST = 100  # columns
BETWEEN = 2  # columns of text
BOLD = re.compile(r"\*\*(.+)\*\*")


def markdown(columns, left=("technique", "script")):
    """Return a GitHub-markdown table of columns, lists of texts by title. Those in `left` are
    aligned to the left."""
    escaped = {
        title.replace("|", r"\|"): [text.replace("|", r"\|") for text in texts]
        for title, texts in columns.items()
    }
    align = ["left" if title in left else "right" for title in columns]
    return tabulate(escaped, "keys", "pipe", disable_numparse=True, colalign=align)


def terminal_width():
    """Return the width of a table on this terminal, None where the output is a pipe or a file."""
    return min(WIDEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def shown(columns, left=("technique", "script"), in_file=False):
    """Return a table for the output: columns as for `markdown`, in which ** marks bold texts."""
    width = terminal_width()
    if width is None or in_file:
        return markdown(columns, left)
    cells = [[title, *texts] for title, texts in columns.items()]
    for texts, column_width in zip(cells, _widths(cells, width), strict=True):
        texts[:] = ["\n".join(_lines(text, column_width)) for text in texts]
        texts.insert(1, "-" * column_width)
    align = ["left" if title in left else "right" for title in columns]
    rows = zip(*cells, strict=True)
    return tabulate(rows, (), "plain", disable_numparse=True, colalign=align)


def _widths(columns, width):
    """Return the widths at which columns of texts fit: those that break the fewest texts, and words
    only where nothing else helps."""
    plain = [[BOLD.sub(r"\1", text) for text in texts] for texts in columns]
    words = [max(map(len, " ".join(texts).split()), default=1) for texts in plain]
    lengths = [max(map(len, texts[1:]), default=1) for texts in plain]  # titles aside
    widths = np.maximum(words, lengths)

    def cost(i):  # lines more where the column is narrower by one
        lines = [
            len(_lines(text, widths[i] - 1)) - len(_lines(text, widths[i])) for text in plain[i]
        ]
        return sum(lines), -widths[i]

    for least in (words, [1] * len(columns)):
        while widths.sum() + BETWEEN * (len(widths) - 1) > width and (widths > least).any():
            widths[min(np.flatnonzero(widths > least), key=cost)] -= 1
    return widths.tolist()


def _lines(text, width):
    """Return a text in lines, each of them bold where the text is."""
    lines = textwrap.wrap(BOLD.sub(r"\1", text), width, break_on_hyphens=False)
    return [f"\033[1m{line}\033[0m" for line in lines] if BOLD.search(text) else lines


def fitted(text, indent="", in_file=False):
    """Return a sentence in lines of the terminal's width; as it is for a pipe or a file. indent: of
    the lines after the first."""
    width = terminal_width()
    if width is None or in_file:
        return text
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)
