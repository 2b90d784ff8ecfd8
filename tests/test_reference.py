"""The results that README and docs/ show are the committed ones, and are fit to be shown."""

import subprocess

import pytest
from PIL import Image

from tests.helpers.rows import committed, study_of
from Utils.analysis import submission
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.commands import __main__ as commands
from Utils.results import rows_file, selection
from Utils.scripts import ladder

FOLDERS = [path.parent for path in selection.shared_files()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_folder_is_complete_and_its_page_is_made_of_its_rows(folder):
    assert submission.check(folder) == [folder]
    assert (folder / "README.md").read_text() == submission.page(folder)
    link = f"]({folder.parent.name}/{folder.name}/README.md)"
    assert link in committed("results/README.md").decode()
    rows = rows_file.read(folder / "results.csv")
    assert rows["round"].nunique() >= 3
    records = rows_file.read_records(folder / "results.csv", rows.run_id.unique())
    for run_id, run in rows.groupby("run_id"):
        record = records[run_id]
        assert record["commit"] == run.commit.iloc[0] and record["source"] and record["platform"]
        assert record["collect_env"] in (folder / "environment.txt").read_text()


def test_the_check_of_pull_requests_reads_every_folder(capsys):
    commands.main("submit", "--check", str(selection.SHARED))
    assert capsys.readouterr().out.splitlines() == [f"{folder}: complete" for folder in FOLDERS]
    workflow = (paths.ROOT / ".github" / "workflows" / "submission.yml").read_text()
    assert "-m Utils.commands submit CHECK=results\n" in workflow


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_the_charts_are_drawn_from_the_rows_beside_them(folder):
    """A chart carries its words as its description."""
    rows, _ = selection.select(rows_file.read(folder / "results.csv"))
    speedups = summarize(study_of(rows)).lines.speedup
    beyond = ladder.repository().beyond()
    for chart in folder.glob("*.png"):
        with Image.open(chart) as image:
            words = " ".join(image.text["Description"].split())
        assert rows.device.iloc[0] in words and rows.commit.iloc[0] in words
        if chart.name.startswith("speedup"):
            for name, ratio in speedups.items():
                of_beyond = name in beyond
                if ratio.value > 0 and of_beyond == (chart.name == "speedup_beyond.png"):
                    assert name in words and ratio.text in words


def test_no_file_is_both_tracked_and_ignored():
    command = ["git", "-C", str(paths.ROOT), "ls-files", "--cached", "--ignored"]
    listed = subprocess.run([*command, "--exclude-standard"], capture_output=True, text=True)
    assert listed.returncode == 0 and listed.stdout == ""
    assert committed("results.csv").decode() == rows_file.HEADER + "\n"
