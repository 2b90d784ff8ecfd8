"""README and docs/: links, commands, generated parts, and tables as GitHub shows them."""

import csv
import html
import importlib.util
import itertools
import re
import subprocess

import pytest
import yaml

from tests.helpers.browser import chromium  # noqa: F401  (a fixture)
from tools.docs import doc_pages
from tools.virtual_gpu import checks
from Utils.base import command_line, paths
from Utils.base.command_line import OF_THE_MAKEFILE, SETTINGS
from Utils.results import rows_file
from Utils.scripts import ladder

PAGES = [
    paths.ROOT / name
    for name in subprocess.run(
        ["git", "-C", str(paths.ROOT), "ls-files", "*.md"], capture_output=True, text=True
    ).stdout.split()
]
TARGETS = {*itertools.chain(*command_line.targets().values()), *ladder.tracked()}
VARIABLES = {name.upper() for name in SETTINGS} | OF_THE_MAKEFILE
# A page of GitHub at its usual width, and what its style sheet says of tables.
WIDTH, STYLE = (
    1012,
    """
body { margin: 0; font: 16px/1.5 sans-serif }
article { box-sizing: border-box; max-width: 1012px; margin: auto; padding: 32px }
table { display: block; width: max-content; max-width: 100%; overflow: auto }
table { border-collapse: collapse }
td, th { padding: 6px 13px; border: 1px solid }
code { font: 85% monospace }
""",
)


def by_page(test):
    names = [page.relative_to(paths.ROOT).as_posix() for page in PAGES]
    return pytest.mark.parametrize("page", PAGES, ids=names)(test)


def code_of(page):
    """The code of a page: its blocks and what stands between backticks."""
    text = page.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", prose)])


def anchors(page):
    """The anchors that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@by_page
def test_every_link_resolves(page):
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", page.read_text()):
        if re.match(r"https?://|\.\./\.\./actions/", target):  # the latter of GitHub, on its page
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@by_page
def test_every_command_exists(page):
    code = code_of(page)
    for line in re.findall(r"(?<![\w.])make (?!-)([^\n`#|;]+)", code):
        words = line.split()
        for word in words:
            name, sets, _ = word.partition("=")
            if sets and name.isupper():
                assert name in VARIABLES, line
        if "=" not in words[0]:
            assert words[0] in TARGETS, line
    for command in re.findall(r"python3? -m Utils\.commands ([a-z_]+)", code):
        assert importlib.util.find_spec(f"Utils.commands.{command}"), command
    for module in re.findall(r"python3? -m ([\w.]+)", code):
        beginning = module.removesuffix(".NAME").removesuffix(".FOLDER")
        assert importlib.util.find_spec(beginning), module
    for script in re.findall(r"python3? (\w+\.py)", code):
        assert (paths.ROOT / script).exists(), script


@by_page
def test_no_page_names_a_file_that_is_gone(page):
    code = code_of(page)
    folders = "Utils|tests|beyond|docs|pretraining"
    for path in re.findall(rf"(?<![\w/.])((?:{folders})/[\w/]+\.(?:py|md|toml|sh))", code):
        assert (paths.ROOT / path).exists(), path


def test_generated_parts_are_up_to_date():
    for page, parts in doc_pages.PARTS.items():
        text = (paths.ROOT / page).read_text()
        for name, make in parts.items():
            shown = text.split(f"<!-- {name} -->")[1].strip()
            assert shown == make(), f"{page}: {name}; make readme writes it"


def test_parts_are_written_between_their_marks(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- x -->\nold\n<!-- x -->\nbelow\n")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(doc_pages.paths, "ROOT", tmp_path)
    monkeypatch.setattr(doc_pages, "PARTS", {"page.md": {"x": lambda: "new"}})
    assert doc_pages.write() == ["page.md"]
    assert page.read_text() == "above\n<!-- x -->\nnew\n<!-- x -->\nbelow\n"


def test_every_column_is_explained():
    page = (paths.ROOT / "docs/COMMANDS.md").read_text().replace("<wbr>", "")
    table = page[page.index("| column |") :]
    names = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)[1:]
    assert ", ".join(names).split(", ") == list(rows_file.COLUMNS)


def test_published_and_forecast_ratios_are_over_the_step_before():
    published = doc_pages.published_changes().set_index(["script", "name"]).ratio
    assert published["tensorFloat32", "build-nanogpt"] == pytest.approx(1000 / 333)
    assert published["larger_batch", "LLMs-from-scratch"] == pytest.approx(142_156 / 127_345)
    assert published.notna().all() and {name for name, _ in published.index} <= TARGETS
    first, last = doc_pages.blind_figures()
    assert first.measured_ms.equals(last.measured_ms) and not first.equals(last)
    forecast = doc_pages.forecast_changes().set_index(["script", "device"]).ratio
    with (doc_pages.DOCS / "forecast.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == "a100"]
    at_16 = [row for row in rows if row["model"] == "gpt2" and row["batch_size"] == "16"]
    ms = {row["technique"]: float(row["forecast_ms"]) for row in at_16}
    for name, parent in (("torch_compile", "brainFloat16"), ("8bit_optimizer", "flash_attention")):
        assert forecast[name, "a100"].value == pytest.approx(ms[parent] / ms[name], rel=2e-3)


def test_peaks_are_forecast_as_near_to_the_allocators_as_the_page_says():
    with (doc_pages.DOCS / "virtual_gpu.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["forecast_mib"] and row["peak_mib"]]
    assert len(rows) > 5
    for row in rows:
        assert checks.forecast_is_near(row), row
    page = (doc_pages.DOCS / "FORECAST.md").read_text()
    assert all(name in page for name in checks.EXPECTED["forecast_error"])


def test_attention_by_card_is_by_needs():
    lines = doc_pages.attention().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[0][1] == "T4, 7.5" and rows[0][-1] == "RTX 5090, 12.0"
    runs = {re.search(r"\w+", row[0])[0]: row[1:] for row in rows[2:]}
    assert runs["flash_attention"] == ["yes"] * 7 and runs["flex_attention"] == ["no", *["yes"] * 6]
    assert runs["flash_attention_4"] == ["no", "no", "no", "no", "yes", "yes", "no"]


def tables_of(page):
    """The tables of a page in HTML."""
    lines = page.read_text().splitlines()
    for i, line in enumerate(lines):
        if not re.fullmatch(r"\|[:| -]+\|", line):
            continue
        rows = [lines[i - 1]]
        for row in lines[i + 1 :]:
            if not row.startswith("|"):
                break
            rows.append(row)
        cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
        yield "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)


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
    opened = chromium.new_page(viewport={"width": WIDTH, "height": 800})
    opened.set_content(f"<style>{STYLE}</style><article>{body}</article>")
    sizes = opened.evaluate(
        "[...document.querySelectorAll('table')].map(t => [t.scrollWidth, t.clientWidth])"
    )
    opened.close()
    for (page, table), (needed, there) in zip(shown, sizes, strict=True):
        assert needed <= there, f"{page.name}: {needed - there} px too wide: {table[:120]}"


def test_workflows_and_forms_can_be_read_and_run_commands_that_exist():
    github = paths.ROOT / ".github"
    files = [*github.glob("*/*.yml")]
    assert {file.name for file in files} >= {"test.yml", "submission.yml", "field_report.yml"}
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text()), dict), file
    text = "".join(file.read_text() for file in files)
    for command in re.findall(r"-m Utils\.commands (\w+)", text):
        assert importlib.util.find_spec(f"Utils.commands.{command}"), command
