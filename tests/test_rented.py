"""A rented GPU: pieces in the order of their worth, which fit into the time of a command."""

from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.helpers.refusal import refused
from tests.helpers.rows import REPOSITORY, WITH_IDEA, append_run, rows_of
from tests.helpers.stand_ins import without_charts
from tools.peers import loops
from tools.rented import __main__ as rented
from tools.rented import outcome, pieces
from tools.rented.pieces import Piece
from tools.rented.plan import Plan
from tools.rented.rented_device import RentedDevice
from Utils.base import files, paths
from Utils.base.child import Ended

SHAPE = 16, 1024
FIRST = ["ladder", "ladder, four rounds", "fused_optimizer and the fastest at 16x1024"]


@pytest.fixture
def device():
    """An H100 whose ladder has SHAPE."""
    return RentedDevice("NVIDIA H100 80GB HBM3", "2.13.0", "bfloat16", SHAPE)


@pytest.fixture
def machine(monkeypatch, tmp_path, device):
    """A machine whose pieces, the first of the plan, take no time but that of its clock.

    A piece leaves its file, or the rounds that it lacks. codes: exit codes of pieces by title, of
    which 3 and None leave nothing. ran: the pieces that have run. commands: theirs.
    """
    machine = SimpleNamespace(now=0.0, codes={}, ran=[], commands=[])
    machine.path = tmp_path / "rows" / "results.csv"
    monkeypatch.setattr("Utils.results.selection.SHARED", tmp_path / "results")
    without_charts(monkeypatch)
    commit = paths.commit().removesuffix("-dirty")

    def leave(piece):
        if piece.file:
            files.write(piece.file, "measured")
        columns = {
            "batch_size": piece.batch_size,
            "seq_len": piece.seq_len,
            "device": device.name,
            "torch": device.torch,
            "commit": commit,
        }
        if piece.title == "peers":
            columns["suite"] = "peers"

        for name in piece.scripts:
            for r in range(piece.rounds):
                append_run(machine.path, name, [5e3, 50, 50, 50], warmup=1, round=r, **columns)

    def run(plan, piece, minutes):
        machine.ran.append(piece)
        return run_piece(plan, piece, minutes)

    def run_command(command, environment, seconds):
        piece = machine.ran[-1]
        code = machine.codes.get(piece.title, 0)
        machine.now += 60 * piece.minutes
        machine.commands.append(command)
        if code in (0, 1):
            leave(piece)
        return Ended(code, errors="noise\nthe last line <b>\x1b[2J")

    def rent(*words):
        machine.ran.clear()
        code = rented.main(f"RESULTS_FILE={machine.path}", *words)
        return code, [piece.title for piece in machine.ran]

    in_order = pieces.in_order
    run_piece = Plan.run
    machine.rent = rent
    child = SimpleNamespace(in_child=lambda function, values: device, run=run_command)
    monkeypatch.setattr("tools.rented.pieces.in_order", lambda *args: in_order(*args)[:10])
    monkeypatch.setattr("tools.rented.plan.child", child)
    monkeypatch.setattr("tools.rented.plan.Plan.run", run)
    clock = SimpleNamespace(monotonic=lambda: machine.now)
    monkeypatch.setattr("tools.rented.__main__.time", clock)
    return machine


def test_pieces_are_in_the_order_of_their_worth(device, tmp_path):
    """RENTED: "The most useful come first"."""
    ordered = pieces.in_order(REPOSITORY, device, loops.names(""), tmp_path)
    titles = [piece.title for piece in ordered]
    expected = [
        *FIRST,
        "peers",
        "fused_optimizer and int8_linear",
        "fused_cross_entropy and bfloat16_residual",
        "profile",
        "fused_optimizer and gradient_checkpointing",
    ]

    assert [title for title in titles if title in expected] == expected
    run = {name for piece in ordered for name in piece.scripts}
    assert {
        REPOSITORY.get(name).path.parent.name
        for name in REPOSITORY.scripts.keys() - run
        if "fused_optimizer" in REPOSITORY.lineage(name)
    } == {"distributed"}
    assert len({*titles}) == len(titles)
    for piece in ordered:
        assert "suite" not in piece.command or piece.command[2:] == piece.scripts


def test_piece_has_the_rounds_of_its_slowest_script():
    """RENTED: "when the rows have all rounds of its scripts, failed ones too"."""
    piece = Piece("", ("Utils.commands", "suite"), 1, 4, 64, ("a", "b", "c"), rounds=2)
    run = partial(rows_of, step_ms=[9, 9, 9], batch_size=4)
    rows = run("c", step_ms=[], status="unsupported")
    for r in range(2):
        rows += run("a", round=r) + run("b", round=r, suite="peers")
        rows += run("b", round=r, batch_size=8)
    assert piece.rounds_done(pd.DataFrame(rows)) == 0
    rows += run("b", step_ms=[], status="out_of_memory")
    assert piece.rounds_done(pd.DataFrame(rows)) == 1
    rows += run("b", round=1)
    assert piece.rounds_done(pd.DataFrame(rows)) == 2


def test_rented_runs_what_fits_and_goes_on(machine, capsys):
    """RENTED: "`MINUTES=9` twice equals `MINUTES=18`"."""
    code, ran = machine.rent("MINUTES=9", "STEPS=10", "PEERS=src")
    assert code == 0 and machine.now <= 9 * 60
    assert ran == ["ladder"]
    assert "next: run the same command to continue" in capsys.readouterr().out
    words = {"MINUTES=7.5", "BATCH_SIZE=16", "SEQ_LEN=1024", "STEPS=10", "PEERS=src"}
    words |= {f"RESULTS_FILE={machine.path}", "flash_attention"}
    assert words <= {*machine.commands[0]}

    _, again = machine.rent("MINUTES=9")
    assert again == FIRST[1:2]

    machine.path = machine.path.with_name("other") / "results.csv"
    assert machine.rent("MINUTES=18")[1] == ran + again

    machine.path = machine.path.with_name("short") / "results.csv"
    assert machine.rent("MINUTES=5")[1][0] not in FIRST[:2]  # the ladder makes way


def test_rented_writes_down_a_failure_and_tries_it_again_later(machine, capsys):
    machine.codes = {FIRST[0]: 3, FIRST[1]: None, FIRST[2]: 2}
    assert machine.rent("MINUTES=1000") == (1, FIRST)  # the reason of the last holds for all
    said = capsys.readouterr().out
    assert "the last line &#60;b> " in said and "out of time" in said
    page = machine.path.with_name("README.md").read_text()
    assert "out of time" in page

    machine.codes = {FIRST[2]: 1}  # a script of it has failed, which has its row
    assert machine.rent("MINUTES=1000")[1][:3] == FIRST
    machine.codes = {}
    assert machine.rent("MINUTES=1000") == (0, [])  # all is measured
    page = machine.path.with_name("README.md").read_text()
    assert "| ladder, four rounds" in page and "0 of" not in page and "| fused_optimizer" in page


def test_rented_dry_prints_the_plan_and_runs_nothing(machine, monkeypatch, capsys):
    """RENTED: "Scripts that git does not track are left out"."""
    monkeypatch.setattr("tools.rented.plan.repository", lambda precision: WITH_IDEA)
    assert machine.rent("MINUTES=25", "DRY=1") == (0, [])
    text, said = capsys.readouterr()
    assert "my_idea: left out, as git does not track it" in said
    assert text.startswith("NVIDIA H100 80GB HBM3, torch 2.13.0; MINUTES=25\n")
    line = next(line for line in text.splitlines() if line.startswith("| ladder "))
    assert line.replace("|", "").split() == ["ladder", "0", "of", "2", "7.5"]


def test_rented_needs_time_for_a_piece_and_a_page_that_it_may_write(machine):
    with refused("no piece fits; the shortest needs MINUTES=4"):
        machine.rent("MINUTES=1")
    machine.path.write_text("run_id,base,round,seed\n")
    with refused("csv:1: unknown header"):
        machine.rent()
    machine.path.unlink()
    machine.path.with_name("README.md").write_text("mine")
    with refused("not written by this program"):
        machine.rent()


def test_outcome_shares_scripts_with_enough_rounds_in_pairs():
    rows = []
    for name, rounds in (("no_optimization", 5), ("tensorFloat32", 3), ("brainFloat16", 2)):
        for r in range(rounds):
            rows += rows_of(name, [9, 9, 9, 9], round=r)
    rows = pd.DataFrame(rows)
    shared = rows[rows.run_id.isin(outcome._complete_runs(rows))]
    assert {*shared.technique} == {"no_optimization"} and {*shared["round"]} == {0, 1, 2, 3}
