"""Rows -> medians, ratios, intervals, verdicts, table."""

import numpy as np
import pandas as pd
import pytest

from tests.rows import rows_of
from Utils import results, summary
from Utils.errors import UserError


@pytest.fixture
def read(tmp_path):
    """Appends runs to a results file and reads it back, as the tools do."""

    def read(*runs):
        for run in runs:
            results.append(tmp_path / "results.csv", run)
        return results.read(tmp_path / "results.csv")

    return read


def test_medians_and_ratios_leave_warm_up_out(read):
    rows = read(
        rows_of("no_optimization", [900, 900, 100, 102, 104]),
        rows_of("tensorFloat32", [9000, 9, 50, 51, 52]),
        rows_of("brainFloat16", [1, 1, 25, 25.5, 26]),
    )
    lines = summary.summarize(rows)
    assert list(lines.index) == ["no_optimization", "tensorFloat32", "brainFloat16"]
    assert list(lines.median_ms) == [102, 51, 25.5]
    assert list(lines.speedup) == pytest.approx([1, 2, 4])
    assert list(lines.parent_speedup)[1:] == pytest.approx([2, 2])
    assert np.isnan(lines.parent_speedup.iloc[0])
    assert lines.tokens_per_second.iloc[0] == pytest.approx(1 * 64 / 0.102)
    assert lines.first_step_s.iloc[1] == 9.0
    assert set(lines.verdict) == {"one round: no interval"} and lines.speedup_low.isna().all()


def test_a_ratio_is_paired_within_rounds(read):
    """A machine twice as slow in one round says nothing about the technique."""
    runs = []
    for r, drift in enumerate((1, 2, 1.5, 3)):
        runs.append(rows_of("no_optimization", [0, 0, *[100 * drift] * 5], round=r))
        runs.append(rows_of("tensorFloat32", [0, 0, *[80 * drift] * 5], round=r))
    line = summary.summarize(read(*runs)).loc["tensorFloat32"]
    assert line.speedup == pytest.approx(1.25)
    assert (line.speedup_low, line.speedup_high) == pytest.approx((1.25, 1.25))
    assert line.verdict == "faster" and line.rounds == 4


def test_the_interval_is_students_t_on_log_ratios():
    ratios = np.array([1.02, 1.05, 0.99, 1.03])
    got = summary.speedup(pd.Series(100 * ratios), pd.Series([100.0] * 4))
    logs = np.log(ratios)
    half = 3.182446 * logs.std(ddof=1) / 2  # t for 3 degrees of freedom at 97.5%
    assert got["speedup"] == pytest.approx(np.exp(logs.mean()))
    assert got["speedup_low"] == pytest.approx(np.exp(logs.mean() - half), rel=1e-6)
    assert got["speedup_high"] == pytest.approx(np.exp(logs.mean() + half), rel=1e-6)
    assert got["verdict"] == "no detectable difference"
    swapped = summary.speedup(pd.Series([100.0] * 4), pd.Series(150 * ratios))
    assert swapped["verdict"] == "slower"


@pytest.mark.parametrize("ratio", [1.0, 1.02, 1.5])
def test_the_interval_holds_the_true_ratio_19_times_of_20(ratio):
    """Simulated rounds: each with its own drift of the machine, each run with noise of 1%."""
    random = np.random.default_rng(3)
    experiments, rounds, held, wrong = 2000, 5, 0, 0
    for _ in range(experiments):
        drift = random.normal(0, 0.1, rounds)
        reference = pd.Series(np.exp(drift + random.normal(0, 0.01, rounds)) * 100 * ratio)
        medians = pd.Series(np.exp(drift + random.normal(0, 0.01, rounds)) * 100)
        got = summary.speedup(reference, medians)
        held += got["speedup_low"] <= ratio <= got["speedup_high"]
        wrong += got["verdict"] == "slower" or (ratio == 1 and got["verdict"] == "faster")
    assert 0.935 <= held / experiments <= 0.965
    assert wrong / experiments <= 0.065


def test_losses_are_compared_within_rounds():
    """Seeds differ by far more than techniques do; the pairs see through it."""
    seeds = pd.Series([5.0, 5.4, 4.7, 5.2])
    worse = seeds + [0.010, 0.012, 0.009, 0.011]
    got = summary.loss_difference(seeds, worse, exact=False)
    assert got["loss_difference"] == pytest.approx(0.0105)
    assert got["loss_low"] > 0.008 and got["loss_verdict"] == "worse"
    assert summary.loss_difference(worse, seeds, exact=False)["loss_verdict"] == "better"
    same = seeds + [0.01, -0.01, 0.005, -0.004]
    verdict = summary.loss_difference(seeds, same, exact=False)["loss_verdict"]
    assert verdict == "indistinguishable"
    one = summary.loss_difference(seeds[:1], worse, exact=False)
    assert one["loss_verdict"] == "one round: no interval" and np.isnan(one["loss_low"])


def test_losses_that_agree_to_the_last_bit_are_exact(read):
    third = 1 / 3
    lines = summary.summarize(
        read(
            rows_of("no_optimization", [9, 9, 9], loss=third),
            rows_of("tensorFloat32", [9, 9, 9], loss=third),
            rows_of("brainFloat16", [9, 9, 9], loss=np.nextafter(third, 1)),
        )
    )
    assert list(lines.loss_verdict[1:]) == ["exact", "one round: no interval"]


def test_a_loss_that_is_not_finite_is_no_missing_value(read):
    runs = [
        rows_of(name, [9, 9, 9], loss=loss, round=r)
        for r in range(3)
        for name, loss in (("no_optimization", 5.0), ("tensorFloat32", float("nan") if r else 5.0))
    ]
    rows = read(*runs)
    assert summary.summarize(rows).loss_verdict["tensorFloat32"] == "diverged"
    assert summary.table(rows).count("diverged") == 2


def test_a_note_cannot_break_the_table(read):
    rows = read(rows_of("no_optimization", [], status="failed", note="a | b"))
    assert r"a \| b" in summary.table(rows)


def test_the_newest_run_decides_which_rows_are_compared(read):
    rows = read(
        rows_of("no_optimization", [9, 9, 100], device="Old GPU"),
        rows_of("tensorFloat32", [9, 9, 50], device="Old GPU"),
        rows_of("no_optimization", [9, 9, 40], device="New GPU"),
        rows_of("no_optimization", [9, 9, 41], device="New GPU", seq_len=128),
        rows_of("tensorFloat32", [9, 9, 20], device="New GPU"),
    )
    chosen, left_out = summary.select(rows)
    assert set(chosen.device) == {"New GPU"} and set(chosen.seq_len) == {64}
    assert summary.summarize(chosen).speedup["tensorFloat32"] == pytest.approx(2)
    assert "2 runs of gpt2 1x64 on Old GPU" in left_out and "1x128 on New GPU" in left_out
    chosen, _ = summary.select(rows, "old")
    assert set(chosen.device) == {"Old GPU"}
    with pytest.raises(UserError, match="no results of a device named 'H100'; there are Old GPU"):
        summary.select(rows, "H100")


@pytest.mark.parametrize(
    "other",
    [
        {"commit": "0000000"},
        {"torch": "2.11"},
        {"model": "gpt2-xl"},
        {"dataset": "synthetic"},
        {"world_size": 2},
    ],
)
def test_unlike_runs_are_never_mixed(other, read):
    rows = read(
        rows_of("tensorFloat32", [9, 9, 50]), rows_of("no_optimization", [9, 9, 9], **other)
    )
    chosen, left_out = summary.select(rows)
    assert set(chosen.technique) == {"no_optimization"} and "1 run of" in left_out


def test_an_idea_on_a_dirty_tree_is_compared_with_its_commits_runs(read):
    idea = rows_of("my_own", [9, 9, 50], commit="abc1234-dirty")
    chosen, left_out = summary.select(read(rows_of("no_optimization", [9, 9, 100]), idea))
    assert summary.summarize(chosen).speedup["my_own"] == pytest.approx(2) and not left_out
    assert "commit abc1234, abc1234-dirty" in summary.table(chosen)


def test_a_repeated_run_replaces_the_older_one(read):
    rows = read(rows_of("no_optimization", [9, 9, 100]), rows_of("no_optimization", [9, 9, 90]))
    chosen, left_out = summary.select(rows)
    assert summary.summarize(chosen).median_ms["no_optimization"] == 90
    assert left_out == "left out: 1 run repeated since"


def test_the_table_carries_status_reason_memory_and_loss(read):
    rows = read(
        rows_of("no_optimization", [9, 9, 100, 100], loss=4.25),
        rows_of("tensorFloat32", [9, 9, 50, 50], note="TF32: no effect expected on this device"),
        rows_of("brainFloat16", [9, 9, 50, 50], note="TF32: no effect expected on this device"),
        rows_of("8bit_optimizer", [], status="unsupported", note="needs bitsandbytes"),
        rows_of("my_own", [9, 9, 25, 25]),
    )
    table = summary.table(rows)
    cells = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
        for line in table.splitlines()
        if line.startswith("|")
    }
    assert cells["no_optimization"][:2] == ["ok", "100.0"]
    assert cells["no_optimization"][4] == "1.00x"
    assert cells["no_optimization"][8:10] == ["900", "4.250"]
    assert cells["tensorFloat32"][10] == "+0.7500"
    assert cells["tensorFloat32"][-1] == "TF32: no effect expected on this device"
    assert cells["brainFloat16"][-1] == ""  # its parent says so already
    assert cells["8bit_optimizer"] == ["unsupported", *[""] * 11, "needs bitsandbytes"]
    assert cells["my_own"][4] == "4.00x" and cells["my_own"][5] == ""
    assert "one round: no interval" in table and "commit abc1234" in table


def test_a_round_that_failed_is_told_beside_those_that_did_not(read):
    rows = read(
        rows_of("no_optimization", [9, 9, 100]),
        rows_of("no_optimization", [], round=1, status="out_of_memory", note="too big"),
    )
    line = summary.summarize(rows).loc["no_optimization"]
    assert line.status == "ok" and line.note == "round 1: out_of_memory: too big"


def test_the_table_goes_between_the_marks_of_a_page(read, tmp_path):
    read(rows_of("no_optimization", [9, 9, 100]))
    page = tmp_path / "page.md"
    page.write_text(f"above\n{summary.MARK}\nold\n{summary.MARK}\nbelow\n")
    flags = ["--results-file", str(tmp_path / "results.csv"), "--into", str(page)]
    summary.main(flags)
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("\nbelow\n") and "old" not in text
    assert "| no_optimization" in text
    page.write_text("no marks")
    with pytest.raises(UserError, match="page.md: has no two marks"):
        summary.main(flags)
    assert page.read_text() == "no marks"
