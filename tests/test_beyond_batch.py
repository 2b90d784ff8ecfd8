"""larger_batch: the search for its batch, and how its rows are compared."""

import pytest

from beyond.memory import batch_trials
from tests.helpers.stand_ins import gpu
from Utils.device.cpu import CPU
from Utils.harness.settings import Settings


@pytest.fixture
def search(monkeypatch, tmp_path):
    """Function of a device and a stand-in for a trial: (batch, notes, batches tried)."""
    monkeypatch.setattr("Utils.base.paths.CACHE", tmp_path)

    def search(device, speed=lambda B: 100.0 * B, seconds=1.0, at_most=4096, suite=""):
        tried = []

        def run(args, technique, batch_size):
            tried.append(batch_size)
            return float(speed(batch_size)), seconds

        monkeypatch.setattr("beyond.memory.batch_trials.run_trial", run)
        monkeypatch.setenv("SUITE_ID", suite)
        shape = {"batch_size": 16, "seq_len": 64, "steps": 50}
        args = Settings(**shape, hardware=device, technique="larger_batch")
        largest = batch_trials.with_largest_batch(args, "fused_optimizer", at_most)
        return largest.batch_size, args.outcome.notes, tried

    return search


@pytest.mark.parametrize(
    "device, options, best, last",
    [
        (gpu(), {"speed": lambda B: B <= 200 and 1 / B, "seconds": 1e6}, 128, 256),
        (gpu(), {"at_most": 64}, 64, 64),
        (gpu(), {"speed": lambda B: 1000 if B <= 64 else 10}, 64, 128),  # spills to the host
        (CPU(), {"speed": lambda B: min(B, 64)}, 64, 128),  # 16x64 tokens at 16/s: 64 s a step
        (CPU(), {"speed": lambda B: 64 * B, "seconds": 20.0}, 64, 64),  # a run of 50 s
        (CPU(), {"speed": lambda B: 1e6, "seconds": 5.0}, 16, 16),
    ],
)
def test_batch_is_doubled_until_memory_is_out_or_it_no_longer_pays(
    device, options, best, last, search
):
    """METHOD: "It tries doubled batches and takes the last that ran"."""
    note = [f"own batch: {best} in place of 16"] if best > 16 else []
    doubled = [16, 32, 64, 128, 256]
    assert search(device, **options) == (best, note, doubled[: doubled.index(last) + 1])


def test_batch_of_the_first_round_is_that_of_all_rounds_of_a_suite(search):
    rounds = [("a", 64), ("a", 32), ("b", 32)]
    assert [search(gpu(), at_most=most, suite=suite)[0] for suite, most in rounds] == [64, 64, 32]
