"""README and docs/: links, commands, generated parts, and tables as GitHub shows them."""

import importlib.util
import itertools
import re
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from tests.helpers.rows import append_run
from tools.docs import doc_figures, doc_pages, pictures
from tools.share import submission
from tools.virtual_gpu import peaks
from Utils.base import command_line, paths
from Utils.base.command_line import MAKEFILE_VARIABLES, SETTINGS
from Utils.results import rows_file
from Utils.scripts import ladder

PAGES = paths.git("ls-files", "*.md").split()
TARGETS = {*itertools.chain(*command_line.targets().values()), *ladder.tracked()}
VARIABLES = {name.upper() for name in SETTINGS} | MAKEFILE_VARIABLES
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXTS = "*.md *.py *.sh *.toml *.ipynb Makefile :!tests :!results :!CHANGELOG.md"
# A program of Python's without its path, and what it is to do. Any pip installs this package.
PURPOSE = r" -| install \w+(?![\w+])| \S+\.py"
PROGRAM = rf"(?<![\w./%-])(?<!-m )(?:python3?|torchrun|pip|pytest)(?={PURPOSE})[^`\n]*"
FOLDERS = "Utils|tests|examples|beyond|docs|pretraining"


def read(name):
    return (paths.ROOT / name).read_text()


def anchors(text):
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.*)", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_page_links_and_names_what_exists(page):
    """Links, targets and variables of make, modules and files in code."""
    text = read(page)
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", text):
        if not re.match(r"https?://|(\.\./)+(actions|deployments)/", target):  # these are GitHub's
            name, _, anchor = target.partition("#")
            path = (paths.ROOT / page).parent / name if name else paths.ROOT / page
            assert path.exists(), target
            assert not anchor or anchor in anchors(path.read_text()), target

    code = "\n".join([*FENCED.findall(text), *re.findall(r"`([^`\n]+)`", FENCED.sub("", text))])
    for line in re.findall(r"(?<![\w.])make (?!-)([^\n`#|;]+)", code):
        for word in line.split():
            name, sets, _ = word.partition("=")
            assert not (sets and name.isupper()) or name in VARIABLES, line
        assert "=" in line.split()[0] or line.split()[0] in TARGETS, line
    for module in re.findall(r"python -m ([\w.]+)", code):
        assert importlib.util.find_spec(module), module
    for file in re.findall(rf"(?<![\w/.])((?:{FOLDERS})/[\w/]+\.(?:py|md|toml|sh))", code):
        assert (paths.ROOT / file).exists(), file


def test_commands_need_no_module_that_the_shells_python_lacks():
    """Those of pages and of programs' texts: a clone may have .venv alone."""
    for file in paths.git("ls-files", *TEXTS.split()).split():
        for command in re.findall(PROGRAM, read(file)):
            modules = {*re.findall(r"(?:-m|import) (\w+)", command)}
            assert modules and modules <= sys.stdlib_module_names, f"{file}: {command}"


def test_generated_parts_are_up_to_date():
    """DESIGN: "Nothing in a chart, a table or the README is typed by hand"."""
    for path, text in doc_pages.pages().items():
        assert path.read_text() == text, f"{path}: make readme writes it"


def test_parts_are_written_between_their_marks(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- x -->\nold\n<!-- x -->\n<!-- {y[z]:.1f} ms -->old<!-- -->\n")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr("tools.docs.pictures.gpus", Figure)
    monkeypatch.setattr("tools.docs.doc_pages.paths", SimpleNamespace(ROOT=tmp_path))
    monkeypatch.setattr("tools.docs.doc_figures.sources", lambda: {"y": {"z": 2}})
    monkeypatch.setattr("tools.docs.doc_pages.submission.pages", lambda: {tmp_path / "list.md": ""})
    monkeypatch.setattr("tools.docs.doc_pages.PARTS", {"page.md": {"x": lambda: "new"}})
    assert [*map(str, doc_pages.write())] == ["list.md", "page.md"]
    assert len([*tmp_path.glob("docs/*.png")]) == 1
    written = "above\n<!-- x -->\nnew\n<!-- x -->\n<!-- {y[z]:.1f} ms -->2.0 ms<!-- -->\n"
    assert page.read_text() == written


def test_every_column_is_explained():
    table = read("docs/RESULTS.md").replace("<wbr>", "").partition("| column |")[2]
    names = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)
    assert ", ".join(names).split(", ") == list(rows_file.COLUMNS)


def test_peaks_are_forecast_as_near_to_the_allocators_as_the_page_says():
    """docs/FORECAST.md: "within 5% of torch's allocator"."""
    rows = pd.read_csv(doc_figures.DOCS / "virtual_gpu.csv").dropna()
    assert len(rows) > 5 and all(map(peaks.forecast_is_near, rows.to_dict("records")))


@pytest.mark.parametrize(
    "device, precision",
    [
        ("NVIDIA GeForce RTX 4090", "bfloat16"),
        ("Apple M3 Max", "bfloat16"),
        ("Tesla T4", "float16"),
    ],
)
def test_pages_take_a_folder_of_any_kind_of_device(device, precision, tmp_path, monkeypatch):
    """README: "`make submit` writes rows and charts to [results/]", which `make readme` shows."""
    monkeypatch.setattr("Utils.results.selection.SHARED", tmp_path / "results")
    path = tmp_path / "results" / device.replace(" ", "_") / "2026-11-27" / "results.csv"
    path.parent.mkdir(parents=True)
    columns = {"device": device, "reserved_memory_mib": 900 if "Apple" not in device else None}
    for r, script in itertools.product(range(4), ladder.repository(precision).group("ladder")):
        columns |= script.identity.place | {"round": r}
        append_run(path, script.name, [90, 9 + r, 9, 9], {"precision": precision}, **columns)

    texts = [doc_pages.ladder_table(), doc_pages.techniques(), doc_pages.picture()]
    assert all(device in text for text in texts)
    assert pictures.gpus() and device in submission.pages()[path.with_name("README.md")]
