"""Outputs never replace a file or a folder that this program did not write."""

import os
import signal
import time

import pytest

from pretraining import checkpoints, options
from pretraining import start as pretraining
from tests.helpers.refusal import refused
from tests.helpers.rows import append_run
from tests.helpers.stand_ins import full_disk
from tools.profile import profiled_run
from tools.site import site_page
from Utils.base import files
from Utils.commands import __main__ as commands
from Utils.draw import chart_style


def contents(folder):
    """Return the bytes of all files of a folder by path, True for a folder."""
    return {path: path.is_dir() or path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with rows, and with a user's files."""
    monkeypatch.chdir(tmp_path)
    for r in range(2):
        append_run("results.csv", "no_optimization", [5.0] * 4, round=r)

    for name in (
        "plots/speedup.svg",
        "plots/mine.png",
        "mine/loop.py",
        "y.trace.json.gz",
        "y.jsonl",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    "write",
    [
        lambda: commands.main("init_results", "RESULTS_FILE=y.csv"),
        lambda: chart_style.save(chart_style.plt.figure(), "speedup"),
        lambda: pretraining.plan(options.parse("", ["--out=mine", "--with=none", "--device=cpu"])),
        lambda: site_page.write(files.Path("mine")),
        lambda: profiled_run.keep({"technique": "y"}, files.Path(), None),
    ],
)
def test_output_in_place_of_a_file_of_the_user_is_refused(write, here, monkeypatch):
    """DESIGN: "an output never replaces a file that this program did not write"."""
    monkeypatch.setattr("tools.site.site_page.figures", dict)  # they take 8 s
    before = contents(here)
    with refused("was not written by this program|does not belong to"):
        write()
    assert before == contents(here)


def test_output_on_a_full_disk_leaves_the_earlier_one(here, monkeypatch):
    """COMMANDS: "on a full disk the earlier one stays". PRETRAINING: "On a full disk the run ends
    with a one-line error; existing checkpoints stay intact".
    """
    monkeypatch.setattr("tools.profile.profiled_run.read", lambda trace: {})
    for write in (
        lambda: commands.main("report", "REPORT=page.html"),
        lambda: chart_style.save(chart_style.plt.figure(), "train/memory"),
        lambda: checkpoints.save(here, 1, {"model": bytes(9999)}, {"validation_loss": 1.0}),
        lambda: profiled_run.keep({"technique": "x"}, here, lambda x: x.write_bytes(bytes(9999))),
    ):
        write()
        before = contents(here)
        with full_disk(1000), refused("File too large"):
            write()
        assert before == contents(here)


def test_output_of_a_killed_process_is_removed_by_the_next(tmp_path):
    """RESULTS: "What a killed process has left unfinished is removed by the next"."""
    process = os.fork()
    if not process:
        with files.atomic_write(tmp_path / "page"):
            (tmp_path / "begun").touch()
            time.sleep(60)
    (tmp_path / f"{files.UNFINISHED}file").touch()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)

    for remains in (1, 0):  # the process is live, and is killed
        files.write(tmp_path / "page", "new")
        assert len([*tmp_path.glob(f"{files.UNFINISHED}*")]) == remains
        if remains:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def test_output_replaces_an_earlier_one_and_reset_deletes_it(here, capsys):
    rows = (here / "results.csv").read_bytes()
    for _ in range(2):
        commands.main("report", "REPORT=page.html")
        assert capsys.readouterr().out.endswith("page.html\n")
        chart_style.save(chart_style.plt.figure(), "train/memory")
    commands.main("reset")
    names = {path.name for path in (here / "plots").rglob("*.*")}
    assert names == {"speedup.svg", "mine.png"}
    (kept,) = here.glob("results-*.csv")
    assert kept.read_bytes() == rows
