"""README and docs/: links, commands, generated parts, and tables as GitHub shows them."""

import csv
import html
import importlib.util
import itertools
import re
from types import SimpleNamespace

import pytest
import yaml

from tests.helpers.browser import chromium  # noqa: F401  (a fixture)
from tools.docs import doc_figures, doc_pages, gpus_chart
from tools.virtual_gpu import checks
from Utils.base import command_line, paths
from Utils.base.command_line import MAKEFILE_VARIABLES, SETTINGS
from Utils.results import rows_file
from Utils.scripts import ladder

PAGES = paths.git("ls-files", "*.md").split()
TARGETS = {*itertools.chain(*command_line.targets().values()), *ladder.tracked()}
VARIABLES = {name.upper() for name in SETTINGS} | MAKEFILE_VARIABLES
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = "Utils|tests|beyond|docs|pretraining"
# A page of GitHub at its usual width, and what its style sheet says of tables.
STYLE = """
body { margin: 0; font: 16px/1.5 sans-serif }
article { box-sizing: border-box; max-width: 1012px; margin: auto; padding: 32px }
table { display: block; width: max-content; max-width: 100%; overflow: auto }
table { border-collapse: collapse }
td, th { padding: 6px 13px; border: 1px solid }
code { font: 85% monospace }
"""


def read(name):
    return (paths.ROOT / name).read_text()


def anchors(text):
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.*)", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_page_links_and_names_what_exists(page):
    """Links, targets and variables of make, modules, scripts and files in code."""
    text = read(page)
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", text):
        if not re.match(r"https?://|\.\./\.\./actions/", target):  # the latter is GitHub's
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
    modules = re.findall(r"python3? -m ([\w.]+)", code)
    modules += [f"Utils.commands.{name}" for name in re.findall(r"-m Utils\.commands (\w+)", code)]
    for module in modules:
        assert importlib.util.find_spec(re.sub(r"\.(NAME|FOLDER)$", "", module)), module
    files = re.findall(r"python3? (\w+\.py)", code)
    files += re.findall(rf"(?<![\w/.])((?:{FOLDERS})/[\w/]+\.(?:py|md|toml|sh))", code)
    for file in files:
        assert (paths.ROOT / file).exists(), file


def test_generated_parts_are_up_to_date():
    """DESIGN: "Nothing in a chart, a table or the README is typed by hand"."""
    for page, parts in doc_pages.PARTS.items():
        for name, make in parts.items():
            shown = read(page).split(f"<!-- {name} -->")[1].strip()
            assert shown == make(), f"{page}: {name}; make readme writes it"


def test_parts_are_written_between_their_marks(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- x -->\nold\n<!-- x -->\nbelow\n")
    saved = []
    figure = SimpleNamespace(savefig=lambda path, **look: saved.append(path))
    monkeypatch.setattr(gpus_chart, "draw", lambda: figure)
    monkeypatch.setattr(doc_pages, "paths", SimpleNamespace(ROOT=tmp_path))
    monkeypatch.setattr(doc_pages, "PARTS", {"page.md": {"x": lambda: "new"}})
    assert doc_pages.write() == ["page.md"] and saved == [tmp_path / "docs" / "gpus.png"]
    assert page.read_text() == "above\n<!-- x -->\nnew\n<!-- x -->\nbelow\n"


def test_every_column_is_explained():
    table = read("docs/COMMANDS.md").replace("<wbr>", "").partition("| column |")[2]
    names = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)
    assert ", ".join(names).split(", ") == list(rows_file.COLUMNS)


def test_peaks_are_forecast_as_near_to_the_allocators_as_the_page_says():
    with (doc_figures.DOCS / "virtual_gpu.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["forecast_mib"] and row["peak_mib"]]
    assert len(rows) > 5 and all(map(checks.forecast_is_near, rows))
    assert all(name in read("docs/FORECAST.md") for name in checks.EXPECTED["forecast_error"])


def tables_of(page):
    """The tables of a page in HTML."""
    for table in re.findall(r"^\|.*\n\|[:| -]+\|\n(?:\|.*\n)*", read(page), re.MULTILINE):
        cells = table.splitlines()
        rows = [re.split(r"(?<!\\)\|", row)[1:-1] for row in (cells[0], *cells[2:])]
        yield "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)


def _cell(text):
    text = html.escape(text.strip(), quote=False).replace("&lt;wbr&gt;", "<wbr>")
    text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text)
    text = re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"`(.*?)`", r"<code>\1</code>", text)
    return f"<td>{text}</td>"


def test_no_table_is_wider_than_a_page_of_github(chromium):  # noqa: F811
    shown = [(page, table) for page in PAGES for table in tables_of(page)]
    assert len(shown) > 15
    body = "".join(f"<table>{table}</table>" for _, table in shown)
    opened = chromium.new_page(viewport={"width": 1012, "height": 800})
    opened.set_content(f"<style>{STYLE}</style><article>{body}</article>")
    widths = "[...document.querySelectorAll('table')].map(t => t.scrollWidth - t.clientWidth)"
    excess = opened.evaluate(widths)
    opened.close()
    for (page, table), pixels in zip(shown, excess, strict=True):
        assert pixels <= 0, f"{page}: {pixels} px too wide: {table[:120]}"


def test_workflows_and_forms_can_be_read_and_run_commands_that_exist():
    files = [*(paths.ROOT / ".github").glob("*/*.yml")]
    assert {file.name for file in files} >= {"test.yml", "submission.yml", "field_report.yml"}
    for file in files:
        text = file.read_text()
        assert isinstance(yaml.safe_load(text), dict), file
        for command in re.findall(r"-m Utils\.commands (\w+)", text):
            assert importlib.util.find_spec(f"Utils.commands.{command}"), command
