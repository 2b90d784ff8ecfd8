"""Numbers of the report's page: those of rows whose answers are known beforehand."""

import re

import pytest

from tests.browser import charts, plain, section, words
from tests.rows import rows_of, write_record
from Utils.draw import report_page
from Utils.results import rows_file

GPU = {"device": "Test GPU", "batch_size": 4}
TIMES = {"no_optimization": 400, "tensorFloat32": 200, "brainFloat16": 250}
LOSSES = {"no_optimization": 5.0, "tensorFloat32": 5.0, "brainFloat16": 4.9}
LIMITS = {"flops_per_token": 10**9, "precision": "tf32", "datasheet_tflops": 16, "floor_ms": 50.0}
RECORD = {
    "memory": {"weights_mib": 475.0, "gradients_mib": 475.0, "optimizer_state_mib": 949.0},
    "limits": LIMITS | {"ceilings": None},
    "versions": {"cudnn": 91002, "python": "3.12.1"},
    "dataset_facts": {"tokens": 15316420, "shuffled": True},
    "collect_env": "GCC version: 12",
}


def page_of(folder, scale=1, rounds=2):
    """The page of runs whose step times are those in TIMES times `scale`, each round slower than
    the one before by a tenth."""
    path = folder / "results.csv"
    for r in range(rounds):
        for name, ms in TIMES.items():
            steps = [3 * scale * ms, *[scale * ms * (1 + 0.1 * r)] * 4]
            tainted = (name, r) == ("brainFloat16", 1)
            grade = "tainted" if tainted else "clean"
            run = rows_of(name, steps, loss=LOSSES[name], round=r, grade=grade, **GPU)
            rows_file.append(path, run)
            quality = {"drift": 0.01 * r, "mean_power_w": 100.0, "other_cpu_share": None}
            quality["reasons"] = ["slowed by 8%"] if tainted else []
            write_record(path, run, quality=quality, **RECORD)
    return report_page.report(path)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(tmp_path_factory.mktemp("numbers"))


def shown(page, name):
    return plain(section(page, name))


def test_the_ladder_shows_what_was_planted(page):
    ladder = shown(page, "ladder")
    assert "no_optimization 1.00x 419.5 400.0-440.0 610 900 5.000 clean" in ladder
    assert "tensorFloat32 after no_optimization 2.00x" in ladder and "0 exact clean" in ladder
    assert (
        "brainFloat16 after tensorFloat32 1.60x 1.60-1.60 faster "  # 400 / 250, in either round
        "0.80x 0.80-0.80 slower "  # 200 / 250
        "262.2 250.0-275.0 976 900 4.900 "  # 4 x 64 tokens in 262.2 ms
        "-0.1000 -0.1000 to -0.1000 better model changed tainted"
    ) in ladder
    assert "4x64 tokens a step, stdlib, 2 rounds, commit abc1234" in plain(page)


def test_the_charts_show_what_was_planted(page):
    speedup, _, _, memory, *_ = map(words, charts(page))
    assert all(text in speedup for text in ("1.00x", "2.00x", "1.60x", "modelled floor: 8.4x"))
    assert memory.count("900") == 3 and "optimizer state" in memory
    assert "Against no_optimization: 2.00x" in shown(page, "recipe")


def test_limits_memory_cost_quality_and_environment_show_what_was_planted(page):
    # 10^9 FLOP a token at 610.2 tokens/s are 4% of 16 TFLOP/s; 419.5 / 50
    assert re.search(r"no_optimization .* tf32 0.61 4% 50.0 8.4x tensor", shown(page, "limits"))
    assert "no_optimization 455.2 100 45.52 163,876" in shown(page, "cost")
    assert "tensorFloat32 475 475 949 900 0.88" in shown(page, "memory")  # the peak in GiB
    assert "brainFloat16 2 1 1 slowed by 8% +1% 100" in shown(page, "quality")
    environment = shown(page, "environment")
    for line in ("cudnn 91002", "python 3.12.1", "dataset's tokens 15,316,420", "GCC version: 12"):
        assert line in environment, line
    assert "shuffled" not in environment


def test_a_machine_three_times_slower_shows_three_times_the_times_and_the_same_ratios(
    page, tmp_path
):
    slower = shown(page_of(tmp_path, scale=3), "ladder")
    for name, ms in TIMES.items():
        fast, slow = (
            re.search(rf"{name} (after .*?)?(\d\.\d\dx.*?) ([\d.,]+) [\d.,]+-[\d.,]+ \d", text)
            for text in (shown(page, "ladder"), slower)
        )
        assert fast[2] == slow[2]
        times = [float(match[3].replace(",", "")) for match in (fast, slow)]
        mean = 1.1**0.5 * ms  # of two rounds
        assert times == pytest.approx([mean, 3 * mean], abs=0.051)


def test_with_one_round_no_interval_is_shown(tmp_path):
    ladder = shown(page_of(tmp_path, rounds=1), "ladder")
    assert "tensorFloat32 after no_optimization 2.00x 2.00x 200.0 200.0-200.0" in ladder
