"""Where the truth is known, the verdicts are right: equal, slower by 3%, sabotaged."""

import numpy as np
import pytest

from tests.helpers.known import COPIES, WAIT, changed
from Utils.analysis.summary import summarize
from Utils.harness.settings import parse_args
from Utils.results import rows_file, study

FLAGS = ["--model=gpt2-tiny", "--dataset=synthetic", "--device=cpu"]


@pytest.fixture
def measure(path, monkeypatch):
    """Runs the baseline and copies of it for some rounds, forwards and backwards, in this process.

    Returns their figures by name.
    """

    def measure(*names, rounds, flags, more=(), held_out_tokens=512):
        monkeypatch.setattr("Utils.harness.held_out_loss.TOKENS", held_out_tokens)
        monkeypatch.setenv("SUITE_ID", "known")  # its runs of a round are a group
        names = ["no_optimization", *names]
        path.unlink(missing_ok=True)
        for r in range(rounds):
            for name in names if r % 2 == 0 else reversed(names):
                of_run = [f"--results-file={path}", f"--round={r}", f"--seed={r}"]
                args = parse_args("", [*FLAGS, *of_run, *flags.split()], name)
                script = {"__name__": name}
                exec(changed(*COPIES.get(name, ()), *more), script)
                script["main"](args)
        rows = rows_file.read(path).assign(grade="clean")  # losses and waits are not disturbed
        return summarize(study.choose(rows, path)).scripts

    return measure


def test_sabotage_is_caught_and_the_same_is_exact(measure):
    """README: "If a change breaks the model, such as a missing bias, the loss differs"; METHOD:
    "sabotaged copies of the baseline (a mask that sees one token too far, a dropped bias, a loss
    times 1.01) are `model changed`, and a mere copy is `exact`".
    """
    sabotaged = ("wrong_mask", "dropped_bias", "scaled_loss")
    lines = measure("the_same", *sabotaged, rounds=3, flags="--steps 2 --warmup 1 --seq-len 16")
    parity = {name: line.parity for name, line in lines.items()}
    del parity["no_optimization"]
    assert parity == {"the_same": "exact"} | dict.fromkeys(sabotaged, "model changed")
    assert lines["the_same"].loss_difference.verdict == "same"
    # AdamW divides a gradient by its size, so the weights are as good as the baseline's.
    assert abs(lines["scaled_loss"].loss_difference.value) < 0.001


@pytest.mark.slow
@pytest.mark.timing
def test_delay_of_three_percent_is_measured_in_eight_rounds(measure):
    flags = {"flags": "--steps 7 --warmup 1 --seq-len 2", "held_out_tokens": 2}
    for _ in range(3):  # a delay cannot be seen while the machine's speed changes by more
        lines = measure("the_same", "three_percent_longer", rounds=8, more=WAIT, **flags)
        same = lines["the_same"].speedup
        if np.log(same.high / same.low) / 2 < 0.02:
            break
    longer = lines["three_percent_longer"].speedup
    # The bookkeeping between steps is no longer, so on an idle machine the interval may miss 3%.
    half = np.log(longer.high / longer.low) / 2
    assert longer.verdict == "slower" and abs(np.log(longer.value * 1.03)) < max(half, 0.005)
    assert 0.98 < same.value < 1.02
