"""Several processes of one script at once: what counts of them, what is said, what is left."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from tools.together import __main__ as together_command
from tools.together import at_once, rates
from tools.together.at_once import ProcessFailed, ProcessResult
from Utils.base import paths
from Utils.base.errors import Unsupported, UserError
from Utils.launch.turn_taking import Member
from Utils.scripts import ladder

FLAGS = ["--model=gpt2-tiny", "--steps=6", "--warmup=2", "--dataset=synthetic", "--device=cpu"]
PART = ProcessResult(
    began=100.0, step_s=np.array([1.0, 1.0, 2.0]), tokens=64, peak_mib=300.0, record={}
)


def left():
    """Those of the processes that are there, in the order of their start."""
    ours = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if "/together-" in words and process.info["status"] != "zombie":
            ours.append(process)
    return sorted(ours, key=lambda process: process.pid)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The scratch of these tests alone; tokens and the like are where they are."""
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    yield tmp_path / "cache"
    assert not list((tmp_path / "cache").iterdir())


def test_together_only_the_time_in_which_all_train_counts():
    assert rates.tokens_per_second([PART]) == pytest.approx([3 * 64 / 4])
    late = replace(PART, began=101.5, step_s=np.array([0.5, 5.0]), tokens=10)
    # from 101.5 to 104: half of a step and a whole one, against a whole one and 2 of 5 seconds
    values = rates.tokens_per_second([PART, late])
    assert values == pytest.approx([96 / 2.5, 14 / 2.5])


def test_together_rounds_are_compared_in_pairs():
    def ratio(*slower):
        parts = [replace(PART, step_s=PART.step_s * factor) for factor in slower]
        return rates.compare([[PART]] * 3, [[part, part] for part in parts])

    faster = ratio(1.6, 1.7, 1.8)
    assert faster.value == pytest.approx(2 / (1.6 * 1.7 * 1.8) ** (1 / 3))
    assert faster.verdict == "faster" and faster.low > 1
    assert ratio(2.6, 2.7, 2.8).verdict == "slower"
    assert not rates.compare([[PART]], [[PART, PART]]).interval
    pytest.raises(UserError, rates.tokens_per_second, [PART, replace(PART, began=104)])


@pytest.mark.slow
def test_together_two_are_measured_and_leave_no_rows(cache, capsys, tmp_path, monkeypatch):
    kept = []
    run = at_once.at_once
    monkeypatch.setattr(at_once, "at_once", lambda *a: kept.append(run(*a)) or kept[-1])
    calls = []
    for name, usual in (("listen", Member.listen), ("train", Member.train)):
        monkeypatch.setattr(Member, name, lambda *a, n=name, f=usual: calls.append(n) or f(*a))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("SUITE_ID", "")
    monkeypatch.chdir(tmp_path)
    assert together_command.main("T=no_optimization", "--n=2", *FLAGS, "--steps=52") == 0

    said = capsys.readouterr().out
    ((alone,), pair) = kept
    assert [part.record["threads"] for part in (alone, *pair)] == [2, 1, 1]
    of_two = ["listen", "listen", "train", "train", "listen", "listen"]  # none before all are ready
    assert calls == ["listen", "train", "listen", *of_two]
    assert len(pair[0].step_s) == 49 and pair[0].record["settings"] == alone.record["settings"]
    sums = [rates.tokens_per_second(parts).sum() for parts in kept]
    assert f"2 processes reach {sums[1] / sums[0]:.2f}x the tokens per second" in said
    assert re.search(rf"\| +2 \| +1 \| +[\d,]+ \+ [\d,]+ \| +{sums[1]:,.0f} \|", said), said
    assert " + ".join(f"{part.peak_mib:,.0f}" for part in pair) + " |" in said
    assert "inconclusive; measure more" in said and not [*left(), *tmp_path.glob("results.*")]


def kill_the_second():
    for late in left()[1:]:
        late.kill()


def interrupt():
    assert len(left()) == 2
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "minutes", "event", "error", "reason"),
    [
        ("fused_cross_entropy", 5, None, Unsupported, "process . of 2: unsupported: Tri"),
        (
            "no_optimization",
            5,
            kill_the_second,
            ProcessFailed,
            "process 2 .* failed: killed by SIGKILL",
        ),
        (
            "no_optimization",
            0,
            None,
            ProcessFailed,
            "process 1 of 2: failed: ended after the time-out",
        ),
        ("no_optimization", 1, interrupt, KeyboardInterrupt, ""),
    ],
)
def test_together_process_at_fault_is_named_and_all_are_ended(
    name, minutes, event, error, reason, cache, monkeypatch
):
    usual = Member.listen

    def listen(member, end):
        if event:
            event()
        return usual(member, end)

    monkeypatch.setattr(Member, "listen", listen)
    with pytest.raises(error, match=reason):
        at_once.at_once(ladder.get(name), 2, FLAGS, minutes)
    assert not left()


@pytest.mark.slow
def test_together_processes_end_with_the_one_who_started_them(tmp_path):
    command = [sys.executable, "-m", "Utils.commands", "together", "T=no_optimization", *FLAGS]
    command.append("--steps=100000")
    environment, end = {**os.environ, "CACHE_DIR": str(tmp_path)}, time.monotonic() + 60
    with subprocess.Popen(command, cwd=paths.ROOT, env=environment) as process:
        while not left() and time.monotonic() < end:
            time.sleep(0.1)
        process.kill()
    while left() and time.monotonic() < end:
        time.sleep(0.1)
    assert process.returncode == -9 and not left()


def test_together_refuses_what_cannot_be(capsys):
    for words, said in (
        ([], "no technique ''; choose "),
        (["T=no_optimization", "--warmup=0"], "--warmup 0"),
        (["T=nothing"], "nothing"),
    ):
        with pytest.raises(UserError, match=said):
            together_command.main(*words)
    with pytest.raises(SystemExit):
        together_command.main("T=no_optimization", "--n=1")
    assert "'1' is not a whole number from 2 up" in capsys.readouterr().err
