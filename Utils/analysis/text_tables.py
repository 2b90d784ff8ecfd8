"""Texts and tables: fitted to the width of a terminal, as Markdown for a pipe or a file."""

import re
import shutil
import sys
import textwrap

import numpy as np
from tabulate import tabulate

WIDEST = 100  # columns
BETWEEN = 2  # columns of text
BOLD = re.compile(r"\*\*(.+)\*\*")
# Titles of columns of words, which are aligned to the left.
WORDS = {"script", "technique", "verdict", "verdict on B", "parity", "quality", "compiled", "note"}
WORDS |= {"scaling", "switch on", "no detectable difference", "leave out", "evidence"}


def markdown(columns, left=WORDS):
    """Return a GitHub-markdown table of columns, lists of texts by title. left: titles of words."""
    escaped = {
        title.replace("|", r"\|"): [text.replace("|", r"\|") for text in texts]
        for title, texts in columns.items()
    }
    align = ["left" if title in left else "right" for title in columns]
    return tabulate(escaped, "keys", "pipe", disable_numparse=True, colalign=align)


def page(parts, in_file=False):
    """Return texts and tables (columns as for `markdown`, in which ** marks bold texts) one below
    the other, without empty ones. in_file: as Markdown though the output is a terminal.
    """
    parts = [part for part in parts if part]
    if in_file or not sys.stdout.isatty():
        return "\n\n".join(part if isinstance(part, str) else markdown(part) for part in parts)
    width = min(WIDEST, shutil.get_terminal_size().columns)
    fit = {str: _wrapped, dict: _fitted}
    return "\n\n".join(fit[type(part)](part, width) for part in parts)


def _wrapped(text, width):
    """Return a text in lines of a width; code, which is indented, as it is."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not line.startswith("    "):
            indent = "  " if line.startswith("- ") else ""
            lines[i] = textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def _fitted(columns, width):
    """Return a table of that width. Words are broken only where nothing else helps."""
    plain = {title: [BOLD.sub(r"\1", text) for text in texts] for title, texts in columns.items()}
    words = [len(max(" ".join([t, *texts]).split(), key=len)) for t, texts in plain.items()]
    lengths = [max(map(len, texts), default=1) for texts in plain.values()]  # titles aside
    widths = np.maximum(words, lengths)
    while widths.sum() + BETWEEN * (len(widths) - 1) > width and widths.max() > 1:
        # the widest column of those that need not break a word
        widths[max(range(len(widths)), key=lambda i: (widths[i] > words[i], widths[i]))] -= 1
    cells = []
    for (title, texts), column_width in zip(columns.items(), widths.tolist(), strict=True):
        lines = ["\n".join(_lines(text, column_width)) for text in [title, *texts]]
        cells.append([lines[0], "-" * column_width, *lines[1:]])
    align = ["left" if title in WORDS else "right" for title in columns]
    rows = zip(*cells, strict=True)
    return tabulate(rows, (), "plain", disable_numparse=True, colalign=align)


def _lines(text, width):
    """Return a text in lines, each of them bold where the text is."""
    lines = textwrap.wrap(BOLD.sub(r"\1", text), width, break_on_hyphens=False)
    return [f"\033[1m{line}\033[0m" for line in lines] if BOLD.search(text) else lines
