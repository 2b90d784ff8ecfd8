"""Numbers of the report's page: those of rows whose answers are known beforehand."""

import re

import pytest

from tests.browser import charts, plain, section, words
from tests.planted_page import TIMES, page_of


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
    assert memory.count("900") == 5 and "optimizer state" in memory
    assert "Against no_optimization: 2.50x" in shown(page, "recipe")
    assert "Lines for PyTorch" in shown(page, "recipe")
    ablation = section(page, "ablation")  # 400 / 320, alone
    assert "fused_optimizer 1.25x 1.25-1.25 faster" in plain(ablation)
    assert "1.25x" in words(charts(ablation)[0])


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
