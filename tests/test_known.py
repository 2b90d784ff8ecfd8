"""Where the truth is known, the verdicts are right: equal, slower by 3%, sabotaged."""

import sys
import time

import pytest

from tests.known import COPIES, changed
from Utils import hardware, results, run, summary

FLAGS = ["--model", "gpt2-tiny", "--dataset", "synthetic", "--device", "cpu"]


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Runs the baseline and copies of it for so many rounds, forwards and backwards, in this
    process, and returns the rows' summary."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    path = tmp_path / "results.csv"

    def run_once(name, r, flags):
        own = ["--results-file", str(path), f"--round={r}", f"--seed={r}"]
        args = run.parse_args("", [*FLAGS, *own, *flags], name)
        script = {"__name__": name}
        source = changed() if name == "no_optimization" else changed(*COPIES[name])
        exec(compile(source, name, "exec"), script)
        script["main"](args)

    def measure(*names, rounds, flags):
        names = ["no_optimization", *names]
        for r in range(rounds):
            for name in names if r % 2 == 0 else reversed(names):
                run_once(name, r, flags)
        rows = results.read(path)
        return summary.summarize(rows, results.records(path, rows.run_id.unique()))

    return measure


def test_sabotage_is_caught_and_the_same_is_exact(measure):
    sabotaged = ("wrong_mask", "dropped_bias", "scaled_loss")
    lines = measure("the_same", *sabotaged, rounds=3, flags=["--steps", "12", "--warmup", "3"])
    assert lines.parity["the_same"] == "exact"
    assert lines.loss_verdict["the_same"] == "indistinguishable"
    for name in sabotaged:
        assert lines.parity[name] == "model changed", name
    assert lines.loss_verdict["scaled_loss"] == "worse"
    assert lines.loss_difference["scaled_loss"] == pytest.approx(0.01 * lines.loss.iloc[0], rel=0.1)


def test_a_delay_of_three_percent_is_found_in_eight_rounds(measure, monkeypatch):
    """By the processor's time of this thread, which does not run while other programs do: what
    they do to the clock on the wall is for simulations to show."""
    monkeypatch.setattr(hardware.CPU, "mark", lambda device: time.thread_time())
    names = ("the_same", "three_percent_longer")
    lines = measure(*names, rounds=8, flags=["--steps", "45", "--warmup", "5"])
    print(lines[["speedup", "speedup_low", "speedup_high", "verdict"]].to_string())
    line = lines.loc["three_percent_longer"]
    assert line.verdict == "slower"
    assert 1 / line.speedup_high <= 1.03 <= 1 / line.speedup_low
    assert 0.985 < lines.speedup["the_same"] < 1.015
