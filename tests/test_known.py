"""Where the truth is known, the verdicts are right: equal, slower by 3%, sabotaged."""

import numpy as np
import pytest
import torch

from tools.calibration import first_losses
from tools.calibration.known import COPIES, WAIT, changed
from Utils.analysis.summary import summarize
from Utils.harness import held_out_loss
from Utils.harness.settings import parse_args
from Utils.results import rows_file, study

FLAGS = ["--model", "gpt2-tiny", "--dataset", "synthetic", "--device", "cpu"]


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Runs the baseline and copies of it for so many rounds, forwards and backwards, in this
    process, and returns the rows' summary."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one, asleep, can take 10 ms to wake
    path = tmp_path / "results.csv"

    def run_once(name, r, flags, more):
        own = ["--results-file", str(path), f"--round={r}", f"--seed={r}"]
        args = parse_args("", [*FLAGS, *own, *flags], name)
        script = {"__name__": name}
        source = changed(*COPIES.get(name, ()), *more)
        exec(compile(source, name, "exec"), script)
        script["main"](args)

    def measure(*names, rounds, flags, more=(), held_out_tokens):
        monkeypatch.setattr(held_out_loss, "TOKENS", held_out_tokens)
        names = ["no_optimization", *names]
        path.unlink(missing_ok=True)
        for r in range(rounds):
            for name in names if r % 2 == 0 else reversed(names):
                run_once(name, r, flags, more)
        return summarize(study.newest(rows_file.read(path), path)).lines

    yield measure
    torch.set_num_threads(threads)


def test_sabotage_is_caught_and_the_same_is_exact(measure):
    sabotaged = ("wrong_mask", "dropped_bias", "scaled_loss")
    flags = ["--steps", "8", "--warmup", "3"]
    lines = measure("the_same", *sabotaged, rounds=3, flags=flags, held_out_tokens=512)
    assert lines.parity["the_same"] == "exact"
    assert lines.loss_difference["the_same"].verdict == "indistinguishable"
    for name in sabotaged:
        assert lines.parity[name] == "model changed", name
    # AdamW divides a gradient by its size, so the weights are as good as the baseline's.
    assert abs(lines.loss_difference["scaled_loss"].value) < 0.001


@pytest.mark.slow
def test_a_learning_rate_wrong_by_two_shows_in_the_held_out_loss(measure):
    flags = ["--dataset", "stdlib", "--steps", "20", "--warmup", "3"]
    lines = measure("doubled_rate", "halved_rate", rounds=3, flags=flags, held_out_tokens=512)
    assert lines.loss_difference["doubled_rate"].verdict == "better"
    assert lines.loss_difference["halved_rate"].verdict == "worse"


@pytest.mark.slow
@pytest.mark.timing
def test_a_delay_of_three_percent_is_found_in_eight_rounds(measure):
    names = ("the_same", "three_percent_longer")
    flags = ["--steps", "7", "--warmup", "1", "--seq-len", "2"]
    for _ in range(3):  # a delay cannot be found while the machine's speed changes by more
        lines = measure(*names, rounds=8, flags=flags, more=WAIT, held_out_tokens=2)
        same = lines.speedup["the_same"]
        if np.log(same.high / same.low) / 2 < 0.015:
            break
    longer = lines.speedup["three_percent_longer"]
    assert longer.verdict == "slower"
    # With the t of 99.9%, 5.4 instead of 2.4: an interval of 95% misses one time in twenty.
    half = np.log(longer.high / longer.low) / 2 * 5.4 / 2.36
    assert abs(np.log(longer.value * 1.03)) < half
    assert 0.98 < same.value < 1.02


def test_a_wrong_mask_changes_the_first_loss_more_than_rounding_does(capsys, monkeypatch):
    monkeypatch.setattr(first_losses, "SHAPES", [(2, 8)])
    first_losses.main(["--seeds=2", *FLAGS])
    shape, bfloat16, float8, wrong_mask = capsys.readouterr().out.splitlines()[-1].split()
    assert shape == "2x8" and 0 < float(bfloat16) < float(float8)
    assert float(bfloat16) < float(wrong_mask)
