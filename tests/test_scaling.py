"""Strong and weak scaling: which runs, and what is made of their rows."""

import re
from types import SimpleNamespace

import pytest

from tests.helpers.rows import rows_of
from tools.forecast.imagined_gpu import ImaginedGPU
from tools.scaling import __main__ as scaling_command
from Utils.base.errors import UserError
from Utils.device import device_choice
from Utils.launch import rank_launcher
from Utils.results import rows_file


@pytest.fixture
def scale(tmp_path, monkeypatch, capsys):
    """Function that runs `make scaling` with runs that only leave their rows.

    step_ms: function of (processes, global batch); None where that run fails.
    Returns the exit code, what was launched, and the lines of the printed table.
    """
    file = tmp_path / "results.csv"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device_choice, "available", lambda wanted: (8, "8 cores"))
    launched = []

    def scale(step_ms, *flags):
        def launch(name, command, count, threads, **variables):
            flags = dict(word[2:].split("=") for word in command if "=" in word)
            r, size, seed = (int(flags[name]) for name in ("round", "batch-size", "seed"))
            launched.append((r, count, size, threads, seed))
            ms = step_ms(count, size)
            if ms is None:
                return 1
            columns = {"round": r, "world_size": count, "batch_size": size}
            rows = rows_of(name, [9 * ms, 9 * ms, *[ms * (r + 1)] * 5], **columns)
            record = {"run_id": rows[0]["run_id"], "suite_id": variables["SUITE_ID"]}
            rows_file.append(file, rows, record)
            return 0

        monkeypatch.setattr(rank_launcher, "launch", launch)
        code = scaling_command.main("--device=cpu", f"--results-file={file}", *flags)
        table = re.sub(r"[ |]+", " ", capsys.readouterr().out)
        return code, launched, re.findall(r"(?m)^ ((?:strong|weak) .*) $", table)

    return scale


def test_scaling_measures_pairs_in_interleaved_rounds(scale):
    """DISTRIBUTED: "The speedup is the ratio of tokens per second to that of the fewest
    processes, paired within rounds"; "every other round in reverse order". The machine is slower
    in each round, which cancels.
    """
    code, launched, lines = scale(
        lambda n, B: 4 + 10 * B / n, "--gpus=4 2", "--rounds=3", "--batch-size=8"
    )
    plan = [(2, 8), (4, 8), (4, 16)]  # both kinds meet in one run at the fewest
    orders = plan, plan[::-1], plan
    assert launched == [(r, n, B, 2, r) for r in range(3) for n, B in orders[r]]

    # Amdahl: 44 ms on two processes, 24 ms on four with the same batch.
    assert code == 0 and lines == [
        "strong 2 8 80.0 6,404 1.00x 100%",
        "strong 4 8 43.6 11,740 1.83x (1.83-1.83), faster 92% (92% to 92%)",
        "weak 2 8 80.0 6,404 1.00x 100%",
        "weak 4 16 80.0 12,807 2.00x (2.00-2.00), faster 100% (100% to 100%)",
    ]


def test_scaling_leaves_out_a_number_of_processes_that_failed(scale):
    """And one round has no interval."""
    step_ms = lambda n, B: None if n == 2 else B  # noqa: E731
    code, _, lines = scale(step_ms, "--gpus=1 2 4", "--batch-size=4")
    assert code == 1 and lines == [
        "strong 1 4 4.0 64,000 1.00x 100%",
        "strong 4 4 4.0 64,000 1.00x 25%",
        "weak 1 4 4.0 64,000 1.00x 100%",
        "weak 4 16 16.0 64,000 1.00x 25%",
    ]


def test_scaling_batch_fits_one_process_and_is_shared_evenly(monkeypatch):
    """DISTRIBUTED: "With `auto` the batch is the largest that one process takes alone and that
    every number of processes divides".
    """
    auto = SimpleNamespace(batch_size="auto", model="gpt2", seq_len="auto", device="cpu")
    assert scaling_command.batch(auto, [1, 2, 3]) == 6
    gpu = ImaginedGPU("a GPU", 80 * 2**30)  # 16 sequences fit on it
    monkeypatch.setattr(device_choice, "choose", lambda wanted: gpu)
    asked = SimpleNamespace(batch_size=8)
    assert (scaling_command.batch(auto, [1, 3]), scaling_command.batch(asked, [1, 2])) == (15, 8)
    with pytest.raises(UserError, match="3 processes cannot share it evenly; try --batch-size 3"):
        scaling_command.batch(asked, [1, 3])
