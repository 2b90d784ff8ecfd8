"""A rented GPU: pieces in the order of their worth, which fit into the time of a command."""

from types import SimpleNamespace

import pandas as pd
import pytest

from tests.helpers.rows import REPOSITORY, WITH_IDEA, rows_of
from tools.peers import loops
from tools.rented import __main__ as rented
from tools.rented import outcome, pieces
from tools.rented import plan as plan_module
from tools.rented.pieces import Piece
from tools.rented.plan import Plan
from Utils.base import files
from Utils.base.child import Ended
from Utils.base.errors import UserError
from Utils.launch.costs import compiles
from Utils.results import rows_file

SHAPE = 16, 1024
CONDITIONS = {
    "device": "NVIDIA H100 80GB HBM3",
    "torch": "2.13.0",
    "precision": "bfloat16",
    "batch_size": 16,
    "seq_len": 1024,
    "longest": 1024,
    "min_seconds": 10.0,
}
FIRST = ["ceilings, round 0", *(f"ladder, round {r}" for r in range(4))]
START_S, COMPILE_S, STEP_S = 8.0, 20.0, 1.0
STEPS = 10


def forecast(script, shape=SHAPE, seconds=STEP_S, reason=""):
    ends = seconds and [seconds, seconds / 2, 2 * seconds]
    return {"script": script, "shape": [*shape], "seconds": ends, "reason": reason}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose pieces, the first of the plan, take no time but that of its clock.

    codes: exit codes of pieces by name. ran: names of the pieces that have run.
    """
    machine = SimpleNamespace(now=0.0, codes={}, ran=[], path=tmp_path / "rows" / "results.csv")

    def in_child(function, *args):
        if function.__name__ == "conditions":
            return {**CONDITIONS}
        return [forecast(name, shape) for shape, names in args[1].items() for name in sorted(names)]

    def run(piece, environment, seconds):
        machine.ran.append(piece.name)
        code = machine.codes.get(piece.name, 0)
        has_rows = code in (0, 1) and piece.title != "ceilings"
        for name in piece.scripts if has_rows else ():
            first_s = COMPILE_S if compiles(name, REPOSITORY) else STEP_S
            machine.now += START_S + first_s + STEPS * STEP_S
            rows = rows_of(
                name,
                [1e3 * first_s, *[1e3 * STEP_S] * STEPS],
                warmup=1,
                round=piece.round or 0,
                batch_size=piece.batch_size,
                seq_len=piece.seq_len,
            )
            rows_file.append(machine.path, rows)
        return Ended(code, errors="noise\nthe last line")

    def rent(*words):
        machine.ran.clear()
        code = rented.main(f"RESULTS_FILE={machine.path}", f"STEPS={STEPS}", *words)
        return code, [*machine.ran]

    in_order = pieces.in_order
    monkeypatch.setattr(pieces, "in_order", lambda *args: in_order(*args)[:15])
    monkeypatch.setattr(plan_module, "in_child", in_child)
    monkeypatch.setattr(plan_module, "child", SimpleNamespace(run=run))
    monkeypatch.setattr(Plan, "_command", lambda plan, piece: piece)
    clock = SimpleNamespace(monotonic=lambda: machine.now)
    monkeypatch.setattr(plan_module, "time", clock)
    monkeypatch.setattr(rented, "time", clock)
    machine.rent = rent
    return machine


def test_pieces_are_in_the_order_of_their_worth():
    """COMMANDS: "The most useful come first"."""
    ordered = pieces.in_order(REPOSITORY, *SHAPE, 1024, loops.names(""))
    titles = list(dict.fromkeys(piece.title for piece in ordered))
    expected = [
        "ceilings",
        "ladder",
        "fused_optimizer and the fastest at 16x1024",
        "peers",
        "fused_optimizer and int8_linear",
        "fused_cross_entropy and bfloat16_residual",
        "no_optimization and no_optimization+flash_attention",
        "profile",
        "ladder at 4x1024",
        "fused_optimizer and gradient_checkpointing",
    ]
    assert [title for title in titles if title in expected] == expected
    run = {name for piece in ordered for name in piece.scripts}
    left_out = [script for script in REPOSITORY if script.name not in run]
    descend = [
        script for script in left_out if "fused_optimizer" in REPOSITORY.lineage(script.name)
    ]
    assert {script.path.parent.name for script in descend} == {"distributed"}
    assert len({piece.name for piece in ordered}) == len(ordered)
    for piece in ordered:
        assert "suite" not in piece.command or piece.command[2:] == piece.scripts


@pytest.fixture
def plan(machine):
    """A plan of the machine that has not begun."""
    parser = rented.Parser("", "", *rented.RUN_SETTINGS, "peers", "dry")
    return Plan(parser.parse_args([f"RESULTS_FILE={machine.path}"]), loops.names(""))


def test_plan_has_steps_starts_and_compilations_so_far(plan):
    """COMMANDS: "measured at that shape or forecast, with what starts and first steps took"."""
    plan.forecasts = {("flash_attention", *SHAPE): forecast("flash_attention", seconds=0.1)}
    rows = rows_of("tensorFloat32", [500, 500]) + rows_of("fused_optimizer", [20e3, 600])
    rows += rows_of("muon", [], status="failed")
    plan.ended["ladder, round 0"] = {"runs": pieces.measured(rows, 41.6)}  # 21.6 s in steps
    both = Piece("", (), ("flash_attention", "fused_optimizer"), *SHAPE)
    # 5 steps of warm-up, and 10 s or 45 steps.
    assert plan.seconds(both) == pytest.approx(2 * (10 + 20) + 10.5 + 30)


def test_plan_leaves_out_a_piece_whose_base_does_not_run(plan):
    piece = Piece("", (), ("fused_optimizer", "all_together_float8"), *SHAPE)
    assert plan.refusal(piece) == ""
    plan.forecasts["fused_optimizer", *SHAPE]["reason"] = "no"
    assert plan.refusal(piece) == "no"


def test_rented_runs_what_fits_and_goes_on(machine, capsys):
    """COMMANDS: "`MINUTES=9` twice equals `MINUTES=18`"."""
    code, ran = machine.rent("MINUTES=9")
    assert code == 0 and machine.now <= 9 * 60
    assert ran == FIRST[:3]
    assert "next: the same command goes on" in capsys.readouterr().out

    before = machine.now
    _, again = machine.rent("MINUTES=9")
    assert machine.now - before <= 9 * 60 and not {*ran} & {*again}

    machine.path = machine.path.with_name("other") / "results.csv"
    _, once = machine.rent("MINUTES=18")
    assert len({*once} ^ {*ran, *again}) <= 3

    machine.path = machine.path.with_name("short") / "results.csv"
    assert machine.rent("MINUTES=4")[1][1] not in FIRST  # the ladder makes way


def test_rented_ends_when_all_is_measured(machine, capsys):
    _, ran = machine.rent("MINUTES=1000")
    assert ran[:5] == FIRST
    assert "goes on" not in capsys.readouterr().out
    assert machine.rent("MINUTES=1000") == (0, [])
    page = machine.path.with_name("README.md").read_text()
    assert "Nothing is left." in page and "| ladder, round 3" in page
    assert "| fused_optimizer" in page and "1,000 (500.0-2,000)" in page  # forecast and range


def test_rented_says_how_long_the_shortest_piece_takes(machine):
    problem = "MINUTES=1: no piece fits; the shortest needs MINUTES=3"
    with pytest.raises(UserError, match=problem):
        machine.rent("MINUTES=1")


def test_rented_writes_down_a_failure_and_tries_it_again_later(machine, capsys):
    machine.codes = {FIRST[1]: 3, FIRST[2]: 1, FIRST[3]: None, FIRST[4]: 2}
    assert machine.rent("MINUTES=1000") == (1, FIRST)  # the reason of the last holds for all
    said = capsys.readouterr().out
    assert "the last line" in said and "out of time" in said
    machine.codes = {}
    code, ran = machine.rent("MINUTES=1000")
    assert code == 0 and ran[:3] == [FIRST[1], *FIRST[3:]]  # a script of FIRST[2] has its row


def test_rented_dry_prints_the_plan_and_runs_nothing(machine, monkeypatch, capsys):
    """COMMANDS: "8 s and 25 s before the first"; "Scripts that git does not track are left out"."""
    monkeypatch.setattr(plan_module, "repository", lambda precision: WITH_IDEA)
    assert machine.rent("MINUTES=25", "DRY=1") == (0, [])
    text, said = capsys.readouterr()
    assert "my_idea: left out, as git does not track it" in said
    assert text.startswith("NVIDIA H100 80GB HBM3, torch 2.13.0; MINUTES=25\n")
    ladder_s = 8 * (8 + 5 + 10) + 5 * 25  # 5 steps of warm-up, and 10 s; a parent runs again
    line = next(line for line in text.splitlines() if line.startswith("| ladder "))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["ladder", "4", f"{ladder_s / 60:.1f}", f"{(23 + 4 * ladder_s) / 60:.1f}", ""]


def test_rented_makes_a_damaged_plan_anew(machine, capsys):
    machine.rent("DRY=1")
    (file,) = machine.path.parent.glob("plan-*.json")
    file.write_text('{"ended": 3}')
    assert machine.rent("DRY=1")[0] == 0
    assert f"{file}: " in capsys.readouterr().err


def test_plan_of_another_setting_does_not_replace_one(machine):
    machine.rent("MINUTES=9")
    machine.rent("MODEL=gpt2-medium", "DRY=1")
    assert FIRST[0] not in machine.rent("MINUTES=9")[1]


def test_rented_measures_nothing_where_it_may_not_write(machine):
    page = machine.path.with_name("README.md")
    page.parent.mkdir()
    page.write_text("mine")
    with pytest.raises(UserError, match="not what this program wrote"):
        machine.rent()
    page.unlink()
    with files.locked(page.with_name("plan.lock")):
        with pytest.raises(UserError, match="another make rented"):
            machine.rent()


def test_outcome_shares_scripts_with_enough_rounds_in_pairs():
    rows = []
    for name, rounds in (("no_optimization", 5), ("tensorFloat32", 3), ("brainFloat16", 2)):
        for r in range(rounds):
            rows += rows_of(name, [9, 9, 9, 9], round=r)
    rows = pd.DataFrame(rows)
    shared = rows[rows.run_id.isin(outcome._complete_runs(rows))]
    assert {*shared.technique} == {"no_optimization"} and {*shared["round"]} == {0, 1, 2, 3}
