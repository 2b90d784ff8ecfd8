"""`make all BASE=` and `make ablate BASE=`: the ladder of a user's script, and the rows of its runs."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest

from tools.own_script import model_switches, own_runs, own_suite
from tools.own_script.switch_names import ORDER
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.commands.__main__ import main as command
from Utils.launch import suite_runner, turn_taking
from Utils.results import rows_file
from Utils.scripts.ladder import Identity, told_identity

from . import forked
from .own_scripts import PACKAGES, in_fork, script, with_namesakes
from .rows import records_in

# The script refuses autocast, and ends by a signal where its optimizer is fused.
BREAKS = """
    assert not torch.is_autocast_enabled("cpu"), "no autocast here"
"""
FIRST = "    def forward(self, x):\n"
CHECKED = f"{FIRST}        assert not torch.is_autocast_enabled('cpu'), 'no autocast here'\n"
KILLED = "if optimizer.defaults['fused']: os.kill(os.getpid(), 9)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return this test's folder. Runs of a user's script are forks, one after the other."""
    forked.prepare_compiler()
    monkeypatch.setattr(own_runs, "FOLDER", tmp_path / "own_scripts")
    monkeypatch.setattr(model_switches, "BACKEND", "aot_eager")
    monkeypatch.setattr(turn_taking, "run", run_forks)
    look = Namespace(run=lambda command, env, **_: in_fork(command[1:], env))
    monkeypatch.setattr(own_runs, "subprocess", look)
    return tmp_path


def run_forks(techniques, flags, suite, minutes, progress):
    """Run scripts as `turn_taking.run` does, without turns."""
    codes = {}
    for technique in techniques:
        environment = technique.environment(SUITE_ID=suite)
        done = in_fork([*technique.command, *flags], environment)
        codes[technique.name] = done.returncode
    return codes, False


def breaking_script(folder):
    """Write a script in which two switches break, and a third has no place. Return its path."""
    source = script(after=KILLED).replace(FIRST, CHECKED).replace("import copy", "import os, copy")
    (folder / "train.py").write_text(source)
    return folder / "train.py"


def run(name, path, *words):
    """Run a command on a user's script for six steps. Return (exit code, rows by technique)."""
    results = path.parent / "results.csv"
    settings = ["STEPS=6", "WARMUP=3", "DEVICE=cpu", f"RESULTS_FILE={results}", *words]
    code = command(name, f"BASE={path}", "ARGS=log.txt", "WRITES=1", *settings)
    rows = rows_file.read(results)
    return code, rows.astype(str).drop_duplicates("technique", keep="last").set_index("technique")


def columns(rows):
    """Return the status, suite, parent and change of each technique, by its name after train."""
    table = rows[["status", "suite", "parent", "change"]]
    return {name.removeprefix("train"): tuple(row) for name, *row in table.itertuples(name=None)}


def test_a_suite_gives_each_row_its_place_and_goes_on_without_what_failed(folder, capfd):
    code, rows = run("suite", breaking_script(folder), "WITHOUT=tensorFloat32 8bit_optimizer")
    import pprint; pprint.pprint(columns(rows)); print(capfd.readouterr().out)
    assert 0
