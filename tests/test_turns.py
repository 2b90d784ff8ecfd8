"""Runs that take turns: who trains when, what is left when one ends, and what the levels are."""

import json
import os
import re
import socket
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import no_optimization
from flash_attention import flash_attention
from tests.helpers.rows import rows_of
from tests.helpers.stand_ins import FakeCuda
from Utils.analysis import intervals
from Utils.base import paths
from Utils.base.command_line import OF_A_RUN, Parser
from Utils.corpus.token_cache import load_tokens, split
from Utils.data import TokenBatches
from Utils.device import measured_ceilings
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.harness import held_out_loss, ranks, settings, step_clock
from Utils.harness import turn_pipe as base_turns
from Utils.harness.step_clock import StepClock
from Utils.harness.turn_pipe import Turn
from Utils.launch import suite_child, suite_runner, turn_taking
from Utils.launch.turn_taking import SuiteProgress
from Utils.model import GPT
from Utils.results import rows_file, selection
from Utils.scripts import ladder

PLAYER = """
import json, os, sys, time
from Utils.harness import turn_pipe

name, log, left, free_mib, ends_after, code = sys.argv[1:7]
left, ends_after, turn = int(left), int(ends_after), turn_pipe.taken()
if ends_after == 0:
    sys.exit(int(code))
number = 0
while left:
    steps = turn.wait(left=left, pace_s=0.01, peak_mib=1000, free_mib=int(free_mib))
    number += 1
    with open(log, "a") as file:
        file.write(json.dumps([name, time.monotonic(), min(steps, left)]) + "\\n")
        time.sleep(0.02)
        file.write(json.dumps([name, time.monotonic(), 0]) + "\\n")
    left -= min(steps, left)
    if number == ends_after:
        time.sleep(float(code)) if float(code) > 100 else sys.exit(int(code))
print(name, "has printed this")
print(f"W1125 10:00:00.1 {os.getpid()} torch/a.py:7] a warning of all")
"""


@pytest.fixture
def play(tmp_path, capsys):
    """Has stand-ins take turns. Returns exit codes, whether memory was full, (name, start, end,
    steps) of each turn, and the lines of progress."""

    def play(*names, free_mib=90_000, left=900, ends=None, minutes=1):
        log = tmp_path / "log"
        log.write_text("")

        def technique(name):
            after, code = (ends or {}).get(name, (-1, 0))
            command = ["-c", PLAYER, name, log, left, free_mib, after, code]
            command = [str(word) for word in command]
            own = {"python": sys.executable, "environment": paths.environment, "needs": ()}
            return SimpleNamespace(name=name, command=command, **own)

        others = [technique(name) for name in names]
        progress = SuiteProgress(len(others))

        codes, full = turn_taking.run(others, [], "suite", minutes, progress)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        played = [
            (name, start, end, steps)
            for (name, start, steps), (_, end, _) in zip(lines[::2], lines[1::2], strict=True)
        ]
        return codes, full, played, capsys.readouterr().err

    return play


def test_one_trains_at_a_time_and_every_other_turn_goes_backwards(play):
    codes, full, played, said = play("a", "b", "c")
    assert codes == {"a": 0, "b": 0, "c": 0} and not full
    order = "".join(name for name, *_ in played)
    assert order.startswith("abccbaabc") and len(order) % 3 == 0
    assert all(end <= start for (_, _, end, _), (_, start, _, _) in pairwise(played))
    shares = {name: [steps for who, *_, steps in played if who == name] for name in "abc"}
    assert shares["a"] == shares["b"] == shares["c"] and sum(shares["a"]) == 900
    assert shares["a"][0] == 101  # a second of timed steps, after one of warm-up
    assert said.count("has printed this") == 3 and said.count("a warning of all") == 1


def test_without_room_for_a_second_one_the_first_runs_alone_and_in_one_go(play):
    codes, full, played, _ = play("a", "b", free_mib=1761)
    assert codes == {"a": 0} and full
    assert [(name, steps) for name, _, _, steps in played] == [("a", 900)]
    assert [*play("a", "b", free_mib=1763)[0]] == ["a", "b"]
    codes, full, *_ = play("a", "b", "c", "d", "e", left=3)
    assert [*codes] == ["a", "b", "c", "d"] and not full  # four at most


def test_one_that_dies_does_not_stop_the_others(play):
    codes, _, played, _ = play("a", "b", ends={"b": (2, 7)})
    assert codes == {"a": 0, "b": 7}
    assert sum(steps for name, _, _, steps in played if name == "a") == 900
    assert play("a", "b", ends={"a": (0, 1)})[0] == {"a": 1, "b": 0}
    assert play("a", "b", ends={"a": (0, 2)})[0] == {"a": 2}  # impossible settings, said once


@pytest.mark.slow
def test_one_that_hangs_is_killed(play):
    codes, *_ = play("a", "b", ends={"b": (1, 1000)}, minutes=0.05)
    assert codes["b"] is None


def test_a_run_ends_where_its_launcher_has_ended():
    end, launchers = socket.socketpair()
    launchers.close()
    with pytest.raises(KeyboardInterrupt):
        Turn(end.fileno(), os.getppid(), "0a1b").wait(left=3)


def test_a_turn_is_of_this_process_and_its_partners_are_the_launchers_other_children(monkeypatch):
    for text in ("", json.dumps([1, os.getpid(), "0a1b"])):
        monkeypatch.setenv(base_turns.VARIABLE, text)
        assert base_turns.taken() is None
    assert os.getpid() not in Turn(0, os.getppid(), "0a1b").partners()
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert other.pid in Turn(0, os.getpid(), "0a1b").partners()
    finally:
        other.kill()
        other.wait()
    assert Turn(0, other.pid, "0a1b").partners() == set()  # it has ended


class Clockwork:
    """A device whose every mark is as many seconds after the one before as it is the nth."""

    def __init__(self):
        self.n, self.now = 0, 0

    def mark(self):
        self.n += 1
        self.now += self.n
        return self.now

    def elapsed_ms(self, marks):
        return [1e3 * (b - a) for a, b in pairwise(marks)]

    def counters(self):
        return {"clock_s": self.now}


def test_steps_of_all_stretches_count_and_what_lies_between_does_not(monkeypatch):
    clock = StepClock(Clockwork())
    monkeypatch.setattr(step_clock, "stretches", lambda *_: [(2, 2), (3, 1), (2, 0)])
    args = SimpleNamespace(steps=7, warmup=2)
    assert len([*clock.steps(args, None, None)]) == 7
    assert clock.step_ms() == [2000, 3000, 5000, 6000, 7000, 9000, 10_000]
    assert clock.timed == [False] * 3 + [True] * 4
    # Read before the mark at which timed steps begin, which takes 5 and 8 s.
    assert clock.counter_growth()["clock_s"] == (5 + 6 + 7) + (8 + 9 + 10)


def duration_of(names, *flags):
    args = Parser("", "", *OF_A_RUN, "precision").parse_args(flags, settings.Settings())
    settings.settle(args)
    return suite_child.sentences(list(suite_runner.named(names, ladder.repository())), args)


def test_an_estimate_counts_starts_steps_rounds_and_parents_that_run_twice(tmp_path):
    path = tmp_path / "results.csv"
    own = {"device": CPU().name, "model": "gpt2-tiny", "seq_len": 32, "batch_size": 2}
    for step_ms, changed in ((2e3, {}), (9e3, {"seq_len": 64}), (9e3, {"device": "another"})):
        rows_file.append(path, rows_of("no_optimization", [9e3, *[step_ms] * 4], **own | changed))
    flags = ["--device=cpu", "--model=gpt2-tiny", "--batch-size=2", "--seq-len=32", "--rounds=3"]
    lines = duration_of(["no_optimization"], *flags, "--steps=50", f"--results-file={path}")
    # (8 s for a start + 50 steps of 2 s) x 4/3 x 3 rounds = 432 s
    assert lines == ["3 rounds of 1 script take about 8 min (by rows of this device)"]


def test_an_estimate_says_what_emulation_costs(tmp_path, monkeypatch):
    ceilings = {"matmul_tflops": {"float32": 0.2, "tf32": 0.2}, "bandwidth_gb_s": 20.0}
    ceilings["emulated_tflops"] = {}
    flags = ["--device=cpu", "--model=gpt2", f"--results-file={tmp_path / 'results.csv'}"]
    monkeypatch.setattr(measured_ceilings, "ceilings", lambda device: ceilings)
    seven = [t.name for t in ladder.tracked().values() if t.at_top_level]
    (usual,) = duration_of(seven, *flags)
    ceilings["emulated_tflops"] = {"bfloat16": 0.002}
    first, second, third = duration_of(seven, *flags)
    minutes = [int(re.search(r"about (\d+) min", line)[1]) for line in (usual, first)]
    # 5 scripts x 50 steps x 64 tokens x 6 x 123.6e6 weights / 0.002 TFLOP/s x 4/3 = 132 min
    assert minutes[1] - minutes[0] == pytest.approx(132, abs=2)
    assert second.startswith("this device emulates bfloat16, slowly, in 5 scripts; set STEPS=8")
    assert third == "make all BASE=no_optimization.py WITHOUT=brainFloat16"
    assert len(duration_of(seven, *flags, "--steps=8", "--warmup=3")) == 1


def test_the_ladders_chart_is_of_the_ladder_after_a_run_of_beyond():
    names = [t.name for t in ladder.repository().group("ladder")]

    def runs(*names, commit="b", device="this", **columns):
        parts = (rows_of(n, [9, 9, 9], commit=commit, device=device, **columns) for n in names)
        return [row for rows in parts for row in rows]

    def selected(*parts):
        rows, _ = selection.select_ladder(pd.DataFrame(sum(parts, [])))
        return [*rows.technique.unique()], rows.commit.iloc[0], rows.device.iloc[0]

    old, here, there = runs(*names, commit="a"), runs(*names), runs(*names, device="another")
    lone, graphs = runs("no_optimization", seq_len=32), runs("cuda_graphs", seq_len=32)
    assert selected(old, lone)[0] == ["no_optimization"]  # an idea of one's own is shown
    assert selected(old, there, lone, graphs) == (names, "a", "this")
    assert selected(old, here, there, lone, graphs) == (names, "b", "this")
    assert selected(there, lone, graphs) == (["no_optimization", "cuda_graphs"], "b", "this")


def timed(*runs):
    """Return the rows of timed steps. runs: (technique, round, token, milliseconds by turn)."""
    rows = []
    for number, (name, r, token, by_turn) in enumerate(runs):
        steps = [0.0]
        phases = ["warmup"]
        for ms in by_turn:
            steps += [9e9, ms, ms]
            phases += ["warmup", "timed", "timed"]
        own = rows_of(name, steps, round=r, run_id=f"20260101T{number:06}Z-{token}")
        rows += [row | {"phase": phase} for row, phase in zip(own, phases, strict=True)]
    return selection.timed(pd.DataFrame(rows, columns=rows_file.COLUMNS))


@pytest.mark.slow
def test_what_disturbs_a_turn_cancels():
    random, n = np.random.default_rng(0), 1000
    machine, elsewhere = np.exp(random.normal(0, 0.3, size=(2, n, 6)))  # of each turn
    a, b = (ms * machine * np.exp(random.normal(0, 0.01, (n, 6))) for ms in (100.0, 80.0))
    b[0, 2] *= 5  # a burst in one turn
    runs = [(name, r, "0001", by[r]) for r in range(n) for name, by in (("a", a), ("b", b))]
    levels = intervals.step_ms(timed(*runs))
    errors = np.log(levels["a"] / levels["b"] / 1.25)
    apart = np.log(np.median(a, axis=1) / np.median(80 * elsewhere, axis=1) / 1.25)
    of_one_turn_each = 0.01 * 2**0.5
    assert np.std(errors) < 0.75 * of_one_turn_each and np.std(apart) > 0.1
    assert abs(np.mean(errors)) < 0.001 and abs(errors[0]) < 0.03


def test_a_parent_that_ran_twice_ties_its_groups():
    """The second group met a machine three times as slow."""
    levels = intervals.step_ms(
        timed(
            ("a", 0, "0001", [100] * 3),
            ("b", 0, "0001", [80] * 3),
            ("b", 0, "0002", [240] * 3),
            ("c", 0, "0002", [120] * 3),
            ("a", 1, "0003", [90, 91, 300]),  # alone
        )
    )
    assert levels["a", 1] == pytest.approx(91)
    assert levels["a", 0] / levels["b", 0] == pytest.approx(1.25, rel=1e-4)
    assert levels["a", 0] / levels["c", 0] == pytest.approx(2.5, rel=1e-4)


def test_the_newest_run_counts_with_those_it_took_turns_with():
    old = [("a", 0, "0001", [100]), ("b", 0, "0001", [80])]
    new = [("a", 0, "0002", [50]), ("b", 0, "0002", [40]), ("b", 0, "0003", [70])]
    new += [("c", 0, "0003", [10])]
    rows, left_out = selection.select(timed(*old, *new))
    assert set(rows.run_id.str[-4:]) == {"0002", "0003"} and "2 runs repeated since" in left_out


def test_a_tainted_run_counts_until_a_clean_one_has_repeated_it():
    first = [("a", 0, "0001", [100]), ("b", 0, "0001", [80]), ("c", 0, "0001", [400])]
    again = [("b", 0, "0002", [160]), ("c", 0, "0002", [100])]
    rows = timed(*first, *again)
    rows.loc[rows.run_id.str.endswith("0001") & (rows.technique == "c"), "grade"] = "tainted"
    alone = rows[rows.run_id.str.endswith("0001")]
    assert {*selection.select(alone)[0].technique} == {"a", "b", "c"}
    chosen, left_out = selection.select(rows)
    assert "1 run repeated since" in left_out and {*chosen.grade} == {"clean"}
    levels = intervals.step_ms(chosen)
    assert levels["a", 0] / levels["c", 0] == pytest.approx(100 / 80 * 160 / 100, rel=1e-4)


def test_on_a_gpu_steps_are_added_until_they_last(settle):
    args = settle("--steps", "6", "--warmup", "2", "--min-seconds", "0.25", "--batch-size", "1")
    fake = FakeCuda()  # 10 ms a step
    args.hardware = CUDA(torch.device("cpu"), cuda=fake)
    fake.calls.clear()
    no_optimization.main(args)
    rows = rows_file.read(args.results_file)
    # 50 ms of warm-up in all, 250 ms of timed steps, and one step more after the pause in which
    # losses are compared.
    assert list(rows.phase) == ["warmup"] * 5 + ["timed"] + ["warmup"] + ["timed"] * 24
    assert rows.held_out_loss.notna().all()
    calls = [name for name in fake.calls if name in ("record", "synchronize")]
    stops = [i for i, name in enumerate(calls) if name == "synchronize"]
    assert stops[0] == 3  # after the boundaries of two steps of warm-up, before any timed one
    assert calls.count("record") == 31 + 3  # one boundary more for each of three stretches


def planned(min_seconds, slowest_rank_s=None, world_size=1):
    """(timed steps, steps) of a run of 6 that needs 10 ms a step, where 2 of these are warm-up."""
    args = SimpleNamespace(steps=6, warmup=2, min_seconds=min_seconds, turn=None)
    args.world_size = world_size
    watch = SimpleNamespace(timed=[False], step_ms=lambda: [10])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "gather", lambda pace_s: [pace_s, slowest_rank_s])
        found = [*step_clock.stretches(args, watch)]
    return sum(steps - warmup for steps, warmup in found), sum(steps for steps, _ in found)


def test_a_run_has_as_many_timed_steps_as_asked_or_more():
    assert planned(min_seconds=0.02) == (4, 2 + 1 + 4 + 1)  # one after the pause at step 6
    assert planned(min_seconds=0.25) == (25, 2 + 3 + 25 + 1)
    assert planned(min_seconds=0.6) == (60, 2 + 10 + 60)  # the pause is in the warm-up
    slowest = {"slowest_rank_s": 0.025, "world_size": 2}  # all ranks take its steps
    assert planned(min_seconds=0.25, **slowest) == (10, 2 + 1 + 10 + 1)


def model_of(args, vocab_size=50_257):
    torch.manual_seed(0)
    loss = torch.nn.functional.cross_entropy
    return GPT(args.config, flash_attention, vocab_size, loss)


def test_the_held_out_loss_is_that_of_the_weights_however_they_are_wrapped(settle):
    args = settle("--batch-size", "2", "--seq-len", "32")
    plain = model_of(args)
    text = held_out_loss._sequences(args)
    assert text.shape == (held_out_loss.TOKENS // 32, 33)
    with torch.no_grad():
        expected = float(plain(text[:, :-1], text[:, 1:].contiguous())[1])
    assert held_out_loss.loss(args, plain) == pytest.approx(expected, abs=1e-4)
    assert held_out_loss.loss(args, torch.compile(plain)) == held_out_loss.loss(args, plain)
    padded = model_of(args, 50_304)
    assert held_out_loss.loss(args, padded) == pytest.approx(expected, abs=1e-4)
    assert held_out_loss.loss(args, plain.bfloat16()) == pytest.approx(expected, abs=0.02)
    assert held_out_loss.loss(args, torch.nn.Linear(2, 2)) is None


def test_it_is_in_float32_over_the_whole_held_out_text(settle):
    args = settle("--seq-len", "32")
    plain = model_of(args)
    with torch.autocast("cpu", torch.bfloat16):
        inside = held_out_loss.loss(args, plain)
    assert inside == held_out_loss.loss(args, plain)
    _, kept = split(load_tokens("synthetic")[0])
    text = held_out_loss._sequences(args)
    assert text[0].tolist() == list(kept[:33]) and text[-1].tolist() == list(kept[-33:])
    assert len({tuple(row) for row in text.tolist()}) == len(text)


def test_no_run_trains_on_held_out_text(settle):
    args = settle("--batch-size", "4", "--seq-len", "64")
    tokens, _ = load_tokens("synthetic")
    train, kept = split(tokens)
    batches = TokenBatches(args)
    assert len(train) + len(kept) == len(tokens) and len(kept) == len(tokens) // 20
    assert max(batches.starts(step).max() for step in range(200)) + 64 < len(train)
    args.seq_len = len(kept)
    assert held_out_loss.loss(args, model_of(args)) is None
