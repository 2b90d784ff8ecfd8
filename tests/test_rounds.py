"""Rounds of a suite: who runs with whom and when the last one has run."""

import re
from argparse import Namespace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from tests.helpers.rows import rows_of
from Utils.base import command_line
from Utils.base.errors import Unsupported, UserError
from Utils.commands import __main__ as commands
from Utils.device.capabilities import CHECKS
from Utils.launch import suite_child, suite_runner, turn_taking
from Utils.results import rows_file
from Utils.scripts import ladder


def chosen(names):
    return suite_runner.named(names.split(), ladder.repository())


LADDER = "no_optimization tensorFloat32 brainFloat16 torch_compile flash_attention fused_optimizer"


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Has rows in place of runs. groups: the names that ran together. room: for so many at once.
    outcome: function of name and round: (exit code, columns of its row)."""
    path, groups = tmp_path / "results.csv", []
    its = SimpleNamespace(
        path=path, groups=groups, room=turn_taking.MOST, outcome=lambda name, r: (0, {})
    )

    def add(name, r, name_of_suite):
        assert len(groups) < 100, "rounds without an end"
        code, columns = its.outcome(name, r)
        if code == 0:
            steps = [] if "status" in columns else [columns.pop("ms", 100.0)] * 4
            rows = rows_of(name, steps, round=r, **columns)
            rows_file.append(path, rows, {"run_id": rows[0]["run_id"], "suite_id": name_of_suite})
        return code

    def run(techniques, flags, name_of_suite, minutes, progress):
        r = int(next(flag for flag in flags if flag.startswith("--round=")).partition("=")[2])
        inside = [technique.name for technique in techniques[: its.room]]
        groups.append(inside)
        codes = {name: add(name, r, name_of_suite) for name in inside}
        return codes, len(inside) < len(techniques)

    monkeypatch.setattr(turn_taking, "run", run)
    monkeypatch.setattr(suite_runner.paths, "CACHE", tmp_path / "cache")
    defaults = {name: setting.default for name, setting in command_line.OF_A_RUN.items()}
    its.args = Namespace(**defaults, timeout=60, precision=None)
    its.args.results_file = path
    return its


def test_every_pair_is_together_once_and_odd_rounds_go_backwards(stand_in):
    stand_in.args.rounds = 2
    techniques = chosen(LADDER)
    assert suite_runner.run(techniques, stand_in.args).code == 0
    names = LADDER.split()
    assert stand_in.groups == [names[:4], names[3:], names[:1:-1], names[2::-1]]


@pytest.mark.parametrize(
    ("command", "words"),
    [("suite", []), ("suite", ["everything"]), ("ablate", [])],
    ids=["smoke", "everything", "ablate"],
)
def test_without_bfloat16_a_command_runs_the_float16_line_and_says_so_once(
    command, words, stand_in, monkeypatch, capsys
):
    monkeypatch.setitem(CHECKS, "bfloat16", mock.Mock(side_effect=Unsupported("none")))
    monkeypatch.setattr(suite_runner, "version", lambda package: "2.13.0")
    monkeypatch.setattr(suite_child, "announce", lambda scripts, args: None)
    files = [f"RESULTS_FILE={stand_in.path}", f"PLOTSPREFIX={stand_in.path.parent}/plots-"]
    commands.main(command, *words, *files, "ROUNDS=1")
    assert capsys.readouterr().out.count(ladder.IN_FLOAT16) == 1
    ran = {name for group in stand_in.groups for name in group}
    assert {"no_optimization", "float16_grad_scaler", "float16_fused_optimizer"} <= ran
    assert not ran & ladder.FLOAT16.keys()


def test_without_room_for_two_each_runs_once_by_itself(stand_in):
    stand_in.room = 1
    techniques = chosen("no_optimization tensorFloat32 brainFloat16")
    assert suite_runner.run(techniques, stand_in.args).code == 0
    assert stand_in.groups == [[technique.name] for technique in techniques]


def test_what_has_no_timing_is_not_repeated_for_its_partners(stand_in):
    stand_in.outcome = lambda name, r: (
        0,
        {"status": "unsupported", "note": "no"} if "Float" in name else {},
    )
    techniques = chosen(LADDER)
    assert suite_runner.run(techniques, stand_in.args).code == 0
    assert stand_in.groups == [LADDER.split()[:4], LADDER.split()[3:]]


@pytest.mark.parametrize(
    ("noise", "minutes", "rounds", "reason"),
    [
        (0.001, 60, 4, "as narrow as PRECISION=1.0% asks"),  # the fewest for an interval
        (0.1, 0, 1, "minutes have passed; no interval yet"),
    ],
)
def test_rounds_are_added_until_intervals_are_narrow(
    stand_in, noise, minutes, rounds, reason, capsys
):
    random = np.random.default_rng(0)
    stand_in.args.precision, stand_in.args.timeout = 0.01, minutes
    stand_in.outcome = lambda name, r: (0, {"batch_size": 1, "loss": 5 + random.normal(0, noise)})
    outcome = suite_runner.run(chosen("no_optimization tensorFloat32 brainFloat16"), stand_in.args)
    assert outcome.code == 0 and outcome.rows.run_id.nunique() == 3 * rounds
    assert reason in capsys.readouterr().err.splitlines()[-1] and len(stand_in.groups) == rounds


def test_the_widest_interval_decides(stand_in, capsys):
    stand_in.args.precision = 0.03
    stand_in.outcome = lambda name, r: (
        0,
        {"ms": 110.0 if (name, r) == ("brainFloat16", 0) else 100},
    )
    suite_runner.run(chosen("no_optimization tensorFloat32 brainFloat16"), stand_in.args)
    said = capsys.readouterr().err.splitlines()
    asked = [line for line in said if line.endswith("one round more")]
    assert ["of brainFloat16" in line for line in asked[3:]] == [True] * (len(asked) - 3)
    assert len(asked) > 3 and "as narrow as PRECISION=3.0% asks" in said[-1]
    assert re.search(r"[123]\.\d%, of brainFloat16", said[-1])


def test_a_precision_without_a_parent_is_refused_before_anything_runs(stand_in):
    stand_in.args.precision = 0.01
    with pytest.raises(UserError, match="no script's parent runs with it"):
        suite_runner.run(chosen("no_optimization fused_optimizer"), stand_in.args)
    assert not stand_in.groups
