"""The results that README and docs/ show are the committed ones, and are fit to be shown."""

import io
import json
import subprocess

import pytest
from PIL import Image

from tests.rows import committed
from Utils.analysis.intervals import numbers
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.draw import doc_pages
from Utils.results import rows_file, selection
from Utils.scripts import ladder

REPORT_LOST = "76cb456"  # commit of the runs whose report of collect_env is lost


@pytest.fixture(scope="module")
def all_rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "results.csv"
    path.write_bytes(committed("results.csv"))
    return rows_file.read(path)


@pytest.fixture(scope="module")
def rows(all_rows):
    return selection.select_ladder(all_rows)[0]


@pytest.fixture(scope="module")
def beyond(all_rows):
    return selection.select(all_rows, newest_of=all_rows[all_rows.technique.isin(ladder.beyond())])[
        0
    ]


@pytest.fixture(scope="module")
def records(all_rows):
    return {i: json.loads(committed(f"runs/{i}.json")) for i in all_rows.run_id.unique()}


def test_the_tables_of_the_pages_are_made_from_them(rows, records):
    for page, parts in doc_pages.PARTS.items():
        for name, make in parts.items():
            if make in doc_pages.OF_ROWS:
                shown = doc_pages.part(committed(page).decode(), name)
                assert shown == make(rows, records), f"{page}: {name}"


def words_of(chart):
    """The words in a committed chart, which it carries as its description."""
    with Image.open(io.BytesIO(committed(f"plots/{chart}.png"))) as image:
        return " ".join(image.text["Description"].split())


def test_the_charts_are_drawn_from_them(rows, beyond):
    described, names = selection.describe(rows), ladder.beyond()
    for chart in ("step_times", "heatmap", "speedup", "memory"):
        assert described in words_of(chart)
        assert not any(name in words_of(chart) for name in names)
    described = selection.describe(beyond)
    for chart in ("speedup_beyond", "memory_beyond"):
        assert described in words_of(chart)
    for own, chart in ((rows, "speedup"), (beyond, "speedup_beyond")):
        for name, value in numbers(summarize(own).speedup).value.dropna().items():
            if (name in names) == (chart == "speedup_beyond"):
                assert name in words_of(chart) and f"{value:.2f}x" in words_of(chart)


def test_they_come_from_a_clean_tree_in_three_rounds_or_more(rows, beyond):
    for own in (rows, beyond):
        assert not own.commit.str.contains("dirty").any() and own.commit.str.len().gt(0).all()
        assert own["round"].nunique() >= 3


def test_every_run_has_its_record(all_rows, records):
    for run_id, own in all_rows.groupby("run_id"):
        record = records[run_id]
        assert record["technique"] == own.technique.iloc[0] and record["source"]
        assert record["commit"] == own.commit.iloc[0]
        assert record["versions"]["torch"] and record["platform"]
        report = record["collect_env"]
        assert (report is None) == (record["commit"] == REPORT_LOST)
        assert not report or committed(f"runs/{report}").startswith(b"PyTorch version: ")


def test_no_file_is_both_tracked_and_ignored():
    command = ["git", "-C", str(paths.ROOT), "ls-files", "--cached", "--ignored"]
    listed = subprocess.run([*command, "--exclude-standard"], capture_output=True, text=True)
    assert listed.returncode == 0 and listed.stdout == ""
