"""Texts and tables: fitted to the width of a terminal, as Markdown for a pipe or a file."""

import re
import shutil
import sys
import textwrap

import numpy as np
from tabulate import tabulate

from Utils.base.text import WIDEST

BETWEEN = 2  # spaces between columns
BOLD = re.compile(r"\*\*(.+)\*\*")
# Titles of columns of words, which are aligned to the left.
WORDS = {
    "script",
    "technique",
    "verdict",
    "verdict on B",
    "parity",
    "quality",
    "compiled",
    "note",
    "switch on",
    "no detectable difference",
    "leave out",
    "evidence",
}


def markdown(columns: dict[str, list[str]], left: set[str] = WORDS) -> str:
    """Return a GitHub-markdown table of columns, lists of texts by title. left: titles of words."""
    escaped = {
        title.replace("|", r"\|"): [text.replace("|", r"\|") for text in texts]
        for title, texts in columns.items()
    }
    align = ["left" if title in left else "right" for title in columns]
    return tabulate(escaped, "keys", "pipe", disable_numparse=True, colalign=align)


def page(parts: list[str | dict], in_file: bool = False) -> str:
    """Return texts and tables one below the other, without empty ones.

    parts: texts, and tables as columns for `markdown`, in which ** marks bold texts.
    in_file: as Markdown even if the output is a terminal.
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
    """Return a table of that width. Words are broken only if nothing else helps."""
    # Start with the width of the longest text of each column.
    plain = {title: [BOLD.sub(r"\1", text) for text in texts] for title, texts in columns.items()}
    longest_words = [len(max(" ".join([t, *texts]).split(), key=len)) for t, texts in plain.items()]
    longest_texts = [max(map(len, texts), default=1) for texts in plain.values()]  # without title
    widths = np.maximum(longest_words, longest_texts)

    # Narrow the widest column, first of those that need not break a word.
    while widths.sum() + BETWEEN * (len(widths) - 1) > width and widths.max() > 1:
        has_room = widths > longest_words
        narrowable = widths * has_room if has_room.any() else widths
        widths[narrowable.argmax()] -= 1

    cells = []
    for (title, texts), column_width in zip(columns.items(), widths.tolist(), strict=True):
        texts = [title, "-" * column_width, *texts]
        cells.append(["\n".join(_lines(text, column_width)) for text in texts])
    align = ["left" if title in WORDS else "right" for title in columns]
    rows = zip(*cells, strict=True)
    return tabulate(rows, (), "plain", disable_numparse=True, colalign=align)


def _lines(text, width):
    """Return a text in lines, bold if the text is."""
    lines = textwrap.wrap(BOLD.sub(r"\1", text), width, break_on_hyphens=False)
    return [f"\033[1m{line}\033[0m" for line in lines] if BOLD.search(text) else lines
