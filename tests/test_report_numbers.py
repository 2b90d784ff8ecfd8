"""Numbers of the report's page: those of rows whose answers are known beforehand."""

import re
from html.parser import HTMLParser
from types import SimpleNamespace
from xml.etree.ElementTree import TreeBuilder

import pytest

from tests.rows import rows_of
from Utils.draw import report_page
from Utils.results import rows_file

EMPTY = {"input", "meta", "wbr"}  # elements that have no end; those of SVG end themselves
GPU = {"device": "Test GPU", "batch_size": 4}
TIMES = {"no_optimization": 400, "tensorFloat32": 200, "brainFloat16": 250}
LOSSES = {"no_optimization": 5.0, "tensorFloat32": 5.0, "brainFloat16": 4.9}
LIMITS = {"flops_per_token": 10**9, "precision": "tf32", "datasheet_tflops": 16, "floor_ms": 50.0}
MEMORY = {"weights_mib": 475.0, "gradients_mib": 475.0, "optimizer_state_mib": 949.0}


class Tree(HTMLParser):
    """HTML -> elements of xml.etree, which closes nothing by itself: the page closes what it
    opens."""

    def __init__(self, html):
        super().__init__()
        self.builder = TreeBuilder()
        self.feed(html)
        self.root = self.builder.close()

    def handle_starttag(self, tag, attributes):
        self.builder.start(tag, {key: value or "" for key, value in attributes})
        if tag in EMPTY:
            self.builder.end(tag)

    def handle_startendtag(self, tag, attributes):
        self.builder.start(tag, dict(attributes))
        self.builder.end(tag)

    def handle_endtag(self, tag):
        self.builder.end(tag)

    def handle_data(self, data):
        self.builder.data(data)


def words(element):
    """All the text in an element, a place to break a line being none to break a word."""
    for child in element.iter():
        if child.tag not in ("wbr", "script", "style"):
            child.text = f" {child.text or ''}"
    return " ".join("".join(element.itertext()).split())


def page_of(folder, scale=1, rounds=2):
    """The page of runs whose step times are those in TIMES times `scale`, each round slower than
    the one before by a tenth."""
    path = folder / "results.csv"
    for r in range(rounds):
        for name, ms in TIMES.items():
            steps = [3 * scale * ms, *[scale * ms * (1 + 0.1 * r)] * 4]
            own = rows_of(name, steps, loss=LOSSES[name], round=r, **GPU)
            rows_file.append(path, own)
            quality = {"drift": 0.0, "mean_power_w": 100.0}
            record = {"run_id": own[0]["run_id"], "memory": MEMORY, "quality": quality}
            rows_file.write_record(path, record | {"limits": LIMITS | {"ceilings": None}})
    root = Tree(report_page.report(path)).root
    tables = {}
    for section in root.iter("section"):
        for table in section.iter("table"):
            titles = [words(th) for th in table.iterfind("thead/tr/th")]
            for row in table.iterfind("tbody/tr"):
                cells = dict(zip(titles, map(words, row), strict=False))
                name = words(row[0]).split()[0]
                tables.setdefault(section.get("id"), {}).setdefault(name, {}).update(cells)
    sections = {section.get("id"): words(section) for section in root.iter("section")}
    return SimpleNamespace(tables=tables, sections=sections, text=words(root))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(tmp_path_factory.mktemp("numbers"))


def test_the_ladder_shows_what_was_planted(page):
    shown = page.tables["ladder"]
    medians = {name: line["median step (ms)"] for name, line in shown.items()}
    assert medians == {
        "no_optimization": "420.0 400.0-440.0",
        "tensorFloat32": "210.0 200.0-220.0",
        "brainFloat16": "262.5 250.0-275.0",
    }
    line = shown["brainFloat16"]
    assert line["over baseline"] == "1.60x 1.60-1.60 faster"  # 400 / 250, in either round
    assert line["over parent"] == "0.80x 0.80-0.80 slower"  # 200 / 250
    assert line["tokens/s"] == "975"  # 4 x 64 in 262.5 ms
    assert line["loss difference"] == "-0.1000 -0.1000 to -0.1000 better"
    assert (line["peak memory (MiB)"], line["loss"], line["quality"]) == ("900", "4.900", "clean")
    assert line["parity"] == "model changed"
    assert shown["tensorFloat32"]["parity"] == "exact"
    assert "4x64 tokens a step, stdlib, 2 rounds, commit abc1234" in page.text


def test_the_charts_show_what_was_planted(page):
    assert "no_optimization 420.0 ms" in page.sections["steps"]
    assert "first step 1.2 s" in page.sections["steps"]  # 3 x 400 ms
    assert "tensorFloat32: 2.00x (2.00-2.00), faster" in page.sections["ladder"]
    assert "tensorFloat32, weights: 475 MiB" in page.sections["memory"]
    assert "tensorFloat32 (measured): 2.00x" in page.sections["recipe"]


def test_limits_memory_cost_and_quality_show_what_was_planted(page):
    limits, cost = (page.tables[name]["no_optimization"] for name in ("limits", "cost"))
    assert limits["TFLOP/s"] == "0.61"  # 10^9 FLOP a token at 609.5 tokens/s
    assert limits["MFU (of the datasheet)"] == "4%"  # 0.61 of 16
    assert limits["modelled floor (ms)"] == "50.0" and "8.4x" in limits.values()  # 420 / 50
    assert cost["hours for 10^9 tokens"] == "455.7" and cost["J for 10^6 tokens"] == "164,062"
    memory, quality = (page.tables[name]["tensorFloat32"] for name in ("memory", "quality"))
    assert (memory["optimizer state (MiB)"], memory["peak (GiB)"]) == ("949", "0.88")
    assert (quality["runs"], quality["clean"], quality["tainted"]) == ("2", "2", "0")
    assert quality["power (W)"] == "100"


def test_a_machine_three_times_slower_shows_three_times_the_times_and_the_same_ratios(
    page, tmp_path
):
    slower = page_of(tmp_path, scale=3)
    for name, line in page.tables["ladder"].items():
        other = slower.tables["ladder"][name]
        figures = [
            [float(x) for x in re.findall(r"[\d.]+", one["median step (ms)"].replace(",", ""))]
            for one in (line, other)
        ]
        assert figures[1] == pytest.approx([3 * x for x in figures[0]])
        for ratio in ("over baseline", "over parent"):
            assert other[ratio] == line[ratio]


def test_with_one_round_no_interval_is_shown(tmp_path):
    line = page_of(tmp_path, rounds=1).tables["ladder"]["tensorFloat32"]
    assert line["over baseline"] == "2.00x" and line["median step (ms)"] == "200.0 200.0-200.0"
