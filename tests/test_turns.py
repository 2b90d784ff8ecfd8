"""Runs that take turns: who trains when, what is left when one ends, and what the levels are."""

import json
import os
import socket
import sys
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, count, pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

import no_optimization
from flash_attention import flash_attention
from tests.helpers.rows import rows_of
from tests.helpers.stand_ins import FakeCuda
from Utils.analysis import levels
from Utils.base import paths
from Utils.corpus.token_cache import load_tokens
from Utils.data import TokenBatches
from Utils.device.cuda import CUDA
from Utils.harness import held_out_loss, ranks, step_clock
from Utils.harness.settings import Settings
from Utils.harness.step_clock import StepClock
from Utils.harness.turn_pipe import Turn
from Utils.launch import turn_taking
from Utils.launch.turn_taking import SuiteProgress
from Utils.model import GPT
from Utils.results import rows_file, selection

PLAYER = """
import json, os, sys, time
from Utils.harness import turn_pipe

name, log, left, free_mib, ends_after, code = json.loads(sys.argv[1])
turn = turn_pipe.current_turn()
if name == "b" and os.fork() == 0:  # it leaves a process that holds its end of the socket
    time.sleep(9999)
if ends_after == 0:
    sys.exit(code)
number = 0
while left:
    steps, most = turn.wait(left=left, pace_s=0.01, peak_mib=1000, free_mib=free_mib)
    left = min(left, most)
    number += 1
    start = time.monotonic()
    time.sleep(0.02)
    with open(log, "a") as file:
        file.write(json.dumps([name, start, time.monotonic(), min(steps, left)]) + "\\n")
    left -= min(steps, left)
    if number == ends_after:
        time.sleep(code) if code > 100 else sys.exit(code)
print(name, "has printed this")
print(f"W1125 10:00:00.1 {os.getpid()} torch/a.py:7] a warning of all")
"""


def schedule_of(steps):
    return Mock(
        minutes=1,
        deadline=9e9,
        runs_left=lambda: 1,
        seconds_left=lambda group_s: 60,
        steps=lambda: steps,
    )


@pytest.fixture
def play(tmp_path, capsys):
    """Has stand-ins take turns. Returns exit codes, whether memory was full, (name, start, end,
    steps) of each turn, and the lines of progress.
    """

    def play(names, free_mib=90_000, left=900, minutes=1, schedule=None, **ends):
        log = tmp_path / "log"
        log.write_text("")
        shared = {"python": sys.executable, "environment": paths.environment, "needs": ()}
        techniques = []
        for name in names:
            words = json.dumps([name, str(log), left, free_mib, *ends.get(name, (-1, 0))])
            facts = shared | {"name": name, "label": name, "command": ["-c", PLAYER, words]}
            techniques.append(SimpleNamespace(**facts))

        progress = SuiteProgress(schedule or schedule_of(900))
        progress.next(0, "")
        codes, full = turn_taking.run(techniques, [], "suite", minutes, progress)
        turns = [json.loads(line) for line in log.read_text().splitlines()]
        return codes, full, turns, capsys.readouterr().err

    return play


def test_turns_are_of_a_second_one_at_a_time_and_reversed_every_other_time(play):
    """README: "A script and the one before run alternately, a second each". METHOD: "A run has an
    even number of turns"; "Every second turn and round the order is reversed".
    """
    codes, full, turns, progress = play("abc")
    assert codes == {"a": 0, "b": 0, "c": 0} and not full

    order = "".join(name for name, *_ in turns)
    assert order == "abccba" * 4
    assert all(end <= start for (_, _, end, _), (_, start, _, _) in pairwise(turns))
    steps = [turn[-1] for turn in turns]
    assert steps[::3] == steps[1::3] == steps[2::3] and sum(steps) == 2700
    assert steps[0] == 113  # of 900 steps of 10 ms
    assert progress.count("has printed this") == 3 and progress.count("a warning of all") == 1


def test_turns_are_of_as_many_as_memory_has_room_for(play):
    """METHOD: "Up to four scripts take turns"."""
    codes, full, turns, _ = play("ab", free_mib=1761)
    assert codes == {"a": 0} and full
    assert [(name, steps) for name, _, _, steps in turns] == [("a", 900)]  # in one go
    assert [*play("ab", free_mib=1763)[0]] == ["a", "b"]
    codes, full, *_ = play("abcde", left=3)
    assert [*codes] == ["a", "b", "c", "d"] and not full


@pytest.mark.parametrize(
    "ends, minutes, codes, steps",
    [
        ({"b": (2, 7)}, 1, {"a": 0, "b": 7}, 900),
        ({"a": (0, 2)}, 1, {"a": 2}, 0),  # impossible settings, said once
        ({"b": (1, 1000)}, 0.03, {"a": None, "b": None}, 113),  # it hangs until the time-out
    ],
)
def test_turns_go_on_without_a_run_that_ends(ends, minutes, codes, steps, play):
    """DESIGN: "What cannot run says why, and stops nothing else"."""
    ended, _, turns, _ = play("ab", minutes=minutes, **ends)
    assert ended == codes
    assert sum(turn[-1] for turn in turns if turn[0] == "a") == steps


@pytest.mark.parametrize("steps, turns", [(14, [7, 7]), (27, [7, 7, 7, 6])])
def test_turns_are_four_if_they_have_five_steps(steps, turns, play):
    """METHOD: "four or more, if these have five steps or more"."""
    _, _, taken, _ = play("ab", schedule=schedule_of(steps))
    assert [steps for name, *_, steps in taken if name == "a"] == turns


def test_turns_are_of_a_schedule_once_all_have_warmed_up(play):
    schedule = schedule_of(9)
    _, _, turns, _ = play("ab", schedule=schedule)
    added = [(call.args[0], call.args[2]["left"]) for call in schedule.costs.add.mock_calls]
    assert added == [("a", 900), ("b", 900)]
    assert [(name, steps) for name, _, _, steps in turns] == [("a", 9), ("b", 9)]


def test_turn_ends_where_its_launcher_has_ended():
    end, launchers = socket.socketpair()
    launchers.close()
    with pytest.raises(KeyboardInterrupt):
        Turn(end.fileno(), os.getppid(), "0a1b").wait(left=3)


@pytest.fixture
def clock_of(monkeypatch):
    """A StepClock of these stretches, whose nth mark is n s after the one before."""

    def clock_of(*stretches):
        clock = StepClock(
            SimpleNamespace(
                mark=partial(next, accumulate(count(1))),
                elapsed_ms=lambda marks: [1e3 * (b - a) for a, b in pairwise(marks)],
                counters=lambda: {"steps": len(clock.timed)},
            )
        )
        monkeypatch.setattr(step_clock, "stretches", lambda *_: stretches)
        return clock

    return clock_of


def test_steps_of_all_stretches_count_without_the_time_between(clock_of):
    """METHOD: "Counters are read before and after the timed steps"."""
    clock = clock_of((2, 2), (3, 1), (2, 0))
    args = Settings(steps=7, warmup=2)
    assert len([*clock.steps(args, None, None)]) == 7
    assert clock.step_ms() == [2000, 3000, 5000, 6000, 7000, 9000, 10_000]
    assert clock.timed == [False] * 3 + [True] * 4
    # Read before the mark that ends the last step of warm-up.
    assert clock.counter_growth()["steps"] == 5  # 1 + 2, and 2


@pytest.mark.parametrize(
    "steps_until_late, timed",
    [
        (1, "wt"),  # the rest of the warm-up is left out
        (3, "wwwt"),
        (4, "wwwt"),
        (5, "wwwtt"),
        (9, "wwwtttwtt"),  # it is complete
    ],
)
def test_steps_end_after_the_time_of_a_command(steps_until_late, timed, clock_of, monkeypatch):
    """COMMANDS: "A run that would not end is cut after a step"."""
    clock = clock_of((3, 3), (3, 0), (3, 1))
    late = Mock(side_effect=lambda: len(clock.timed) >= steps_until_late)
    monkeypatch.setattr(step_clock.time, "monotonic", lambda: 61.0 * late())
    args = Settings(steps=9, warmup=3, minutes=1)
    assert len([*clock.steps(args, nullcontext, lambda: None, False)]) == len(timed)
    assert "".join("wt"[is_timed] for is_timed in clock.timed) == timed
    assert clock.length == len(timed)
    is_cut = len(timed) < 9
    assert args.outcome.notes == [f"cut after {len(timed)} of 9 steps: out of time"] * is_cut
    assert clock.counter_growth()["steps"] in (timed.count("t"), timed.count("t") + 1)


def timed(*runs):
    """Return the rows of timed steps. runs: "technique round token milliseconds-by-turn ..."."""
    rows = []
    for number, run in enumerate(runs):
        name, r, token, *by_turn = run.split()
        steps = np.repeat(np.array(by_turn, float), 3)  # the first of a turn is warm-up
        rows += rows_of(name, [*steps], round=int(r), run_id=f"20260101T{number:06}Z-{token}")
    table = pd.DataFrame(rows, columns=rows_file.COLUMNS)
    return selection.timed(table.assign(phase=np.where(table.step % 3, "timed", "warmup")))


def test_selection_counts_the_newest_run_with_its_partners():
    """README: "Slow results stay"."""
    rows = timed(
        "b 0 0000 7",
        "a 0 0001 100",
        "b 0 0001 80",
        "b 0 0002 160",
        "c 0 0002 100",
    )
    chosen, _ = selection.counted_runs(rows, {})
    assert [*(chosen.technique + chosen.run_id.str[-2:]).unique()] == ["a01", "b01", "b02", "c02"]
    ratio = levels.levels_of(chosen, {}, "a").ratio("a", "c")
    assert ratio.value == pytest.approx(2)  # 100 / 80 x 160 / 100


def test_runs_of_a_suite_that_took_no_turns_are_a_group_of_their_round():
    """METHOD: "(or, where memory had no room for turns, those of one round)"."""
    rows = timed("a 0 0 9", "b 0 1 5", "a 1 2 8", "b 1 3 4.4")
    records = dict.fromkeys(rows.run_id, {"suite_id": "s"})
    assert levels.levels_of(rows, records, "a").ratio("a", "b").interval


def test_run_on_a_gpu_has_steps_added_until_they_last(settle):
    """METHOD: "a run on a GPU warms up for at least a fifth of `MIN_SECONDS` (10 s) and times steps
    for at least `MIN_SECONDS`. Losses and memory are those after step `STEPS`"; "The harness waits
    for the device only where the clock is stopped".
    """
    cuda = FakeCuda()  # 10 ms a step
    hardware = CUDA(torch.device("cpu"), cuda=cuda)
    args = settle("--steps=6", "--warmup=2", "--min-seconds=0.25").replace(hardware=hardware)
    cuda.calls.clear()
    no_optimization.main(args)

    rows = rows_file.read(args.results_file)
    # 50 ms of warm-up in all, 250 ms of timed steps, and one step more after the pause in which
    # losses are compared.
    assert list(rows.phase) == ["warmup"] * 5 + ["timed"] + ["warmup"] + ["timed"] * 24
    assert rows.held_out_loss.notna().all()
    calls = [name for name in cuda.calls if name in ("record", "synchronize")]
    # After the boundaries of two steps of warm-up, before any timed step.
    assert calls.index("synchronize") == 3
    assert calls.count("record") == 34  # of 31 steps, and one more for each of three stretches


@pytest.mark.parametrize(
    "min_seconds, slowest_rank_s, stretches",
    [
        (0.02, None, [(2, 2), (4, 1), (2, 1)]),  # one after the pause at step 6
        (0.6, None, [(2, 2), (4, 4), (66, 6)]),  # the pause is in the warm-up
        (0.25, 0.025, [(2, 2), (4, 1), (8, 1)]),  # all ranks take the slowest's steps
    ],
)
def test_run_has_as_many_timed_steps_as_asked_or_more(
    min_seconds, slowest_rank_s, stretches, monkeypatch
):
    """Of 6 steps of 10 ms, where 2 are warm-up."""
    world_size = 2 if slowest_rank_s else 1
    args = Settings(steps=6, warmup=2, min_seconds=min_seconds, world_size=world_size)
    clock = SimpleNamespace(timed=[False], step_ms=lambda: [10], length=6)
    monkeypatch.setattr(ranks, "gather", lambda pace_s: [pace_s, slowest_rank_s])
    assert [*step_clock.stretches(args, clock)] == stretches


def test_held_out_loss_is_of_the_plain_model_in_float32_on_text_that_no_run_trains_on(
    settle, monkeypatch
):
    """METHOD: "The last twentieth of the corpus is held out"; "evaluated on the same 2,048 held-out
    tokens, in float32 and by the plain model".
    """
    monkeypatch.setattr(held_out_loss, "TOKENS", 64)
    args = settle("--batch-size=4", "--seq-len=32")
    tokens, _ = load_tokens("synthetic")
    kept = tokens[-(len(tokens) // 20) :]
    starts = [*map(TokenBatches(args).starts, range(200))]
    assert np.max(starts) + 32 < len(tokens) - len(kept)

    model = GPT(args.config, flash_attention, 50_257, torch.nn.functional.cross_entropy)
    text = torch.tensor(np.stack([kept[:33], kept[-33:]]).astype(int))
    expected = model(text[:, :-1], text[:, 1:].contiguous())[1].item()
    with torch.autocast("cpu", torch.bfloat16):
        assert held_out_loss.loss(args, torch.compile(model)) == pytest.approx(expected, abs=1e-5)
