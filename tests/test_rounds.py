"""Rounds of a suite: who runs with whom, and when the last round has run."""

import re
from types import SimpleNamespace

import pytest

from tests.helpers.rows import append_run
from tests.helpers.stand_ins import arguments
from Utils.commands import __main__ as commands
from Utils.launch import suite_runner, turn_taking
from Utils.launch.schedule import Schedule
from Utils.scripts import ladder

NAMES = ladder.lineage("fused_optimizer")


@pytest.fixture
def suite(tmp_path, path, monkeypatch):
    """Has rows in place of runs.

    groups: the names that ran together. room: for so many at once. columns: function of name and
    round that returns columns of its rows, step_ms by itself. now: seconds, of which a start takes
    ten and a step one.
    """
    suite = SimpleNamespace(
        now=0, groups=[], room=turn_taking.MOST_PROCESSES, columns=lambda name, r: {}
    )

    def run(techniques, flags, suite_id, minutes, progress):
        schedule = progress.schedule
        r = schedule.round.number

        assert f"--round={r}" in flags
        names = [technique.name for technique in techniques[: suite.room]]
        suite.groups.append(names)
        for name in names:
            columns = {"step_ms": 100.0} | suite.columns(name, r)
            steps = [columns.pop("step_ms")] * 4
            if "status" in columns:
                steps = []
            schedule.costs.add(name, 10, {"pace_s": 1.0, "left": 45})
            append_run(path, name, steps, {"suite_id": suite_id}, round=r, **columns)
        suite.now += (10 + min(45, schedule.steps())) * len(names)
        return dict.fromkeys(names, 0), len(names) < len(techniques)

    monkeypatch.setattr("Utils.launch.turn_taking.run", run)
    monkeypatch.setattr("Utils.launch.suite_runner.paths.CACHE", tmp_path / "cache")
    suite.args = arguments(f"--results-file={path}")
    suite.args.timeout = 60
    suite.args.precision = None
    return suite


def run(suite, *names, minutes=None, scripts=None):
    techniques = suite_runner.techniques_named(names, scripts or ladder.repository())
    schedule = Schedule(suite.args, minutes, clock=lambda: suite.now)
    return suite_runner.run(techniques, suite.args, schedule)


@pytest.mark.parametrize(
    "status, code, last",
    [("ok", 0, NAMES[2::-1]), ("unsupported", 0, NAMES[1::-1]), ("failed", 1, NAMES[1::-1])],
)
def test_rounds_have_each_pair_together_once(suite, status, code, last):
    """METHOD: "A script runs alternately with its parent"; "Every second turn and round the order
    is reversed"; "Up to four scripts take turns". One without timings is not repeated for a
    partner.
    """
    suite.args.rounds = 2
    columns = {} if status == "ok" else {"status": status}
    suite.columns = lambda name, r: columns if name == NAMES[2] else {}
    assert run(suite, *NAMES).code == code
    assert suite.groups == [NAMES[:4], NAMES[3:], NAMES[:1:-1], last]


def test_suite_runs_what_failed_again(suite, capsys):
    """MEASURE: "The same command again resumes"."""
    for columns in ({"status": "failed"}, {}):
        suite.columns = lambda name, r, columns=columns: columns if name == NAMES[1] else {}
        assert run(suite, *NAMES[:2]).code == bool(columns)
    assert "resuming: 1 of 2 runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "precision, minutes, said",
    [
        (
            0.035,
            60,
            [
                "+-5.0%, of brainFloat16: one round more",
                "+-3.1%, of brainFloat16: as narrow as PRECISION=3.5% asks",
            ],
        ),
        (0.02, 0, ["TIMEOUT=0 minutes have passed; no interval yet"]),
    ],
)
def test_precision_adds_rounds_until_the_widest_interval_is_narrow(
    suite, precision, minutes, said, capsys
):
    """README: "`make all PRECISION=2% MINUTES=60` adds rounds until 95% intervals are that
    narrow".

    METHOD: "from four on, until every interval over a parent is that narrow or the time is over
    (`MINUTES`, otherwise `TIMEOUT`)".

    By hand, of ratios 1% to either side: Student's t, with which three ratios hold in 99%, is 8.6
    for four rounds and 6.3 for five.
    """
    suite.args.precision, suite.args.timeout = precision, minutes
    noisy = {0: 101.0, 1: 100 / 1.01}
    suite.columns = lambda name, r: {"step_ms": noisy[r % 2]} if name == NAMES[2] else {}
    outcome = run(suite, *NAMES[:3])
    lines = capsys.readouterr().err.replace("the widest interval over a parent is ", "")
    lines = re.findall(".+(?: more| asks| yet)$", lines, re.MULTILINE)

    assert lines == ["too few rounds for an interval: one round more"] * 3 * (minutes > 0) + said
    assert outcome.rows.run_id.nunique() == 3 * len(lines)


def test_rounds_are_in_pairs_while_they_fit_and_the_same_command_adds_more(suite, capsys):
    """MEASURE: "in pairs, one in each direction, while another pair fits"; "The same command again
    resumes, or adds rounds of the same length. A round starts only if it fits".
    """

    def rounds(minutes):
        outcome = run(suite, *NAMES[:2], minutes=minutes)
        assert outcome.code == 0
        said = capsys.readouterr().err.strip().splitlines()[-1]
        return sorted({*outcome.rows["round"]}), said

    # A round takes 2 x (10 s + 45 steps), so 121 s with the margin.
    _, said = shown = rounds(4)
    assert shown[0] == [0, 1] and said == (
        "2 rounds of 2 scripts in 4 min; intervals are wide; MINUTES=16 about halves it"
    )
    assert suite.groups == [NAMES[:2], NAMES[1::-1]]
    assert rounds(3) == ([0, 1], "2 rounds of 2 scripts; no other fits; MINUTES=5 has more")
    assert len(suite.groups) == 2  # none began
    assert rounds(9)[0] == [0, 1, 2, 3] and len(suite.groups) == 4


def test_rounds_run_emulated_scripts_once_and_alone(suite):
    """DESIGN: "What this machine only emulates is shown once and then left out of the line"."""
    suite.args.rounds = 2
    assert run(suite, *NAMES, scripts=ladder.repository("float32")).code == 0
    line = [name for name in NAMES if name != "brainFloat16"]
    assert suite.groups == [["brainFloat16"], line[:4], line[3:], line[:0:-1], line[1::-1]]


@pytest.mark.parametrize("command", ["suite", "ablate"])
def test_suite_without_bfloat16_runs_the_float16_line(
    command, suite, no_bfloat16, monkeypatch, capsys
):
    """README: "On a T4, V100 or RTX 20 `make all` runs the seven [in float16]"."""
    monkeypatch.setattr("Utils.scripts.ladder.version", lambda package: "2.13.0")
    monkeypatch.setattr("Utils.launch.suite_child.announce", lambda *_: None)
    path = suite.args.results_file
    commands.main(command, f"RESULTS_FILE={path}", f"PLOTSPREFIX={path.parent}/", "ROUNDS=1")

    assert capsys.readouterr().out.count(ladder.PRECISIONS["float16"].message) == 1
    names = set().union(*suite.groups)
    assert len(names & {*NAMES[:2], *ladder.FLOAT16.values()}) == 7
    assert not names & ladder.FLOAT16.keys()
