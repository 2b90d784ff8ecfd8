"""The size of the project: no room grows beyond what one person can hold in mind.

Who adds to a room makes it shorter elsewhere: by a simpler design or a library, never by denser
lines."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from Utils.base import paths

# Most lines of Python in each room of Utils; "" has the files of Utils itself. A room that became
# shorter lowers its line.
MOST_LINES = {
    "": 379,
    "analysis": 1722,
    "base": 489,
    "commands": 836,
    "corpus": 282,
    "device": 1134,
    "doctor": 494,
    "draw": 1087,
    "forecast": 1342,
    "harness": 1224,
    "launch": 1178,
    "profile": 718,
    "site": 229,
    "results": 547,
    "own_script": 1776,
    "scripts": 563,
}
MOST_LINES_OF_UTILS = 14_000
OTHER = {".toml", ".html", ".css", ".js"}
MOST_LINES_OF_OTHER = 2_000
MOST_LINES_OF_TESTS = 18_000  # with the virtual GPU's C++
MOST_LINES_OF_PRETRAINING = 1_416
MOST_LINES_OF_MAKEFILE = 180
MOST_FILES = 450  # without results/
MOST_WORDS = {
    "README.md": 1_150,
    "docs/METHOD.md": 1_800,
    "docs/FORECAST.md": 890,
    "docs/YOUR_SCRIPT.md": 700,
}
MOST_FINDINGS = 12
MOST_WORDS_OF_A_FINDING = 200
MOST_WORDS_OF_A_PARAGRAPH = 80


def tracked():
    """Return the paths of the tracked files, relative to the root."""
    command = ["git", "-C", str(paths.ROOT), "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [Path(name) for name in names if name and (paths.ROOT / name).exists()]


FILES = tracked()


def read(page):
    return (paths.ROOT / page).read_text()


def words(text):
    return len(text.split())


def lines(folder, suffixes):
    """Return the number of lines of the tracked files of a folder with one of these suffixes."""
    files = [f for f in FILES if f.is_relative_to(folder) and f.suffix in suffixes]
    assert files, f"{folder}: no files of {suffixes}"
    return sum(len((paths.ROOT / file).read_text().splitlines()) for file in files)


def test_no_room_of_utils_is_too_large():
    sizes = Counter()
    for file in FILES:
        if file.is_relative_to("Utils") and file.suffix == ".py":
            room = file.parts[1] if len(file.parts) > 2 else ""
            sizes[room] += len((paths.ROOT / file).read_text().splitlines())
    assert sizes.keys() == MOST_LINES.keys()
    assert {room: n for room, n in sizes.items() if n > MOST_LINES[room]} == {}
    assert sum(MOST_LINES.values()) <= MOST_LINES_OF_UTILS


@pytest.mark.parametrize(
    ("folder", "suffixes", "most"),
    [
        ("Utils", OTHER, MOST_LINES_OF_OTHER),
        ("tests", {".py", ".cpp", ".h"}, MOST_LINES_OF_TESTS),
        ("pretraining", {".py"}, MOST_LINES_OF_PRETRAINING),
    ],
)
def test_no_folder_is_too_large(folder, suffixes, most):
    assert lines(folder, suffixes) <= most


def test_the_makefile_is_short():
    assert len((paths.ROOT / "Makefile").read_text().splitlines()) <= MOST_LINES_OF_MAKEFILE


def test_there_are_few_files():
    assert len([file for file in FILES if file.parts[0] != "results"]) <= MOST_FILES


@pytest.mark.parametrize("page", MOST_WORDS)
def test_pages_are_short(page):
    texts = re.split("<!-- (?:errors|blind|kinds|kernels) -->", read(page))[::2]  # of FORECAST
    assert words(" ".join(texts)) <= MOST_WORDS[page]


def test_findings_are_few_and_short():
    contents, *findings = read("docs/FINDINGS.md").split("\n### ")
    assert 0 < len(findings) <= MOST_FINDINGS
    for finding in findings:
        title = finding.splitlines()[0]
        assert words(finding) <= MOST_WORDS_OF_A_FINDING, title
        assert f"[{title}](#" in contents and "```sh" in finding, title


@pytest.mark.parametrize("page", [file for file in FILES if file.suffix == ".md"], ids=str)
def test_paragraphs_are_short(page):
    """A paragraph is also an item of a list; code and tables are none."""
    prose = re.sub(r"(?ms)^```.*?^```|^[|<][^\n]*", "", read(page))
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*]|\d+\.)", prose):
        assert words(paragraph) <= MOST_WORDS_OF_A_PARAGRAPH, paragraph
