"""The results that README and docs/ show are the committed ones, and are fit to be shown."""

import io
import json
import subprocess

import pytest
from PIL import Image

from tests.rows import committed
from Utils.analysis import selection
from Utils.analysis.summary import summarize
from Utils.base import ladder, paths, results
from Utils.share import pages


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "results.csv"
    path.write_bytes(committed("results.csv"))
    return selection.select(results.read(path))[0]


@pytest.fixture(scope="module")
def records(rows):
    return {i: json.loads(committed(f"runs/{i}.json")) for i in rows.run_id.unique()}


def test_the_tables_of_the_pages_are_made_from_them(rows, records):
    for page, parts in pages.PARTS.items():
        for name, make in parts.items():
            if make in pages.OF_ROWS:
                shown = pages.part(committed(page).decode(), name)
                assert shown == make(rows, records), f"{page}: {name}"


def words_of(chart):
    """The words in a committed chart, which it carries as its description."""
    with Image.open(io.BytesIO(committed(f"plots/{chart}.png"))) as image:
        return " ".join(image.text["Description"].split())


def test_the_charts_are_drawn_from_them(rows):
    described = selection.describe(rows)
    for chart in ("step_times", "heatmap", "speedup", "speedup_beyond", "memory"):
        assert described in words_of(chart)
    speedups, beyond = summarize(rows).speedup.dropna(), ladder.beyond()
    for name, value in speedups.items():
        bars = words_of("speedup_beyond" if name in beyond else "speedup")
        assert name in bars and f"{value:.2f}x" in bars
    assert not any(name in words_of("speedup") for name in beyond)


def test_they_come_from_a_clean_tree_in_three_rounds_or_more(rows):
    assert not rows.commit.str.contains("dirty").any() and rows.commit.str.len().gt(0).all()
    assert rows["round"].nunique() >= 3


def test_every_run_has_its_record(rows, records):
    for run_id, own in rows.groupby("run_id"):
        record = records[run_id]
        assert record["technique"] == own.technique.iloc[0] and record["source"]
        assert record["commit"] == own.commit.iloc[0]
        assert committed(f"runs/{record['collect_env']}").startswith(b"PyTorch version: ")


def test_no_file_is_both_tracked_and_ignored():
    command = ["git", "-C", str(paths.ROOT), "ls-files", "--cached", "--ignored"]
    listed = subprocess.run([*command, "--exclude-standard"], capture_output=True, text=True)
    assert listed.returncode == 0 and listed.stdout == ""
