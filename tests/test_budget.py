"""The size of the project in tokens of code.

Layout does not count: a blank line, a comment, a docstring and an annotation cost nothing. A figure
over the most is met by a simpler design, a library, or by leaving a feature out.

The bounds of tests and pretraining are the design's. Those of Utils and tools are their sizes of
today, on the way to the design's 58,000 and 66,000: what is added takes as much out.
"""

import ast
import io
import tokenize
from pathlib import Path

import pytest

from Utils.base import paths

MOST_TOKENS = {"Utils": 62_430, "tools": 68_600, "tests": 76_000, "pretraining": 10_500}
# Functions of AIRLESS_LINES lines or more without a blank line, as a share of all of that length.
MOST_AIRLESS = {"Utils": 0.10, "tools": 0.10, "tests": 0.20, "pretraining": 0.10}
AIRLESS_LINES = 15
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}

FILES = [Path(name) for name in paths.git("ls-files", "-z").split("\0") if name]
FILES = [file for file in FILES if (paths.ROOT / file).exists()]


def read(file):
    return (paths.ROOT / file).read_text()


def sources(folder):
    """Return the text of each tracked Python file of a folder."""
    return [read(file) for file in FILES if file.parts[0] == folder and file.suffix == ".py"]


def uncounted_spans(tree):
    """Yield (start, end) of docstrings and annotations, pairs of line and byte."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        uncounted = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            uncounted.append(node.body[0])
        for part in uncounted:
            if isinstance(part, ast.AST):
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def tokens(source):
    """Return the number of tokens of code in a source."""
    spans = list(uncounted_spans(ast.parse(source)))
    lines = source.splitlines()
    count = 0
    mark = ""  # the last token that was counted

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT:
            mark = ""
            continue
        number, column = token.start
        position = number, len(lines[number - 1][:column].encode())
        if not any(start <= position < end for start, end in spans):
            count += 1
            mark = token.string
        elif mark in (":", "->"):  # it belongs to the annotation that begins here
            count -= 1
            mark = ""
    return count


def airless(source):
    """Return the long functions of a source, and how many of them have no blank line."""
    lines = source.splitlines()
    long = without = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 >= AIRLESS_LINES:
            body = node.body[ast.get_docstring(node) is not None :]
            first = body[0].lineno if body else node.end_lineno
            long += 1
            without += "" not in map(str.strip, lines[first - 1 : node.end_lineno])
    return long, without


@pytest.mark.parametrize("folder", MOST_TOKENS)
def test_folder_has_few_tokens_and_functions_with_air(folder, capsys):
    texts = sources(folder)
    count = sum(map(tokens, texts))
    density = count / sum(len(text.splitlines()) for text in texts)
    counts = [airless(text) for text in texts]
    share = sum(without for _, without in counts) / sum(long for long, _ in counts)

    with capsys.disabled():
        print(f"\n{folder}: {count:,} tokens, {density:.1f} a line, {share:.0%} without air")

    assert count <= MOST_TOKENS[folder]
    assert share <= MOST_AIRLESS[folder]
