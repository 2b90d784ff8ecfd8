"""Intervals of ratios and losses: by hand, and their coverage in simulations."""

import math
from dataclasses import astuple
from functools import partial

import numpy as np
import pandas as pd
import pytest

from Utils.analysis import intervals
from Utils.analysis.intervals import LossDifference, Ratio

EXPERIMENTS = 2000


def paired(random, true, rounds=5, outliers=0.0, drift=0.0):
    """The Ratio of two scripts in rounds whose machine drifts, each run with noise of 1%.
    outliers: share of the runs that met something and took up to half as long again. drift: of the
    machine within a round, which meets the other script in every other round."""
    by_round = random.normal(0, 0.1, rounds)
    order = np.where(np.arange(rounds) % 2 == 0, 1, -1)

    def step_ms(log):
        log = log + by_round + random.normal(0, 0.007, rounds)
        met = random.random(rounds) < outliers
        return pd.Series(np.exp(log + met * random.uniform(0.05, 0.4, rounds)))

    return intervals.speedup(step_ms(np.log(true) + drift * order), step_ms(0.0))


def unpaired(random, true, rounds_a, rounds_b):
    """The Ratio of rates whose rounds are not paired, those of B three times as noisy."""
    rates_a = pd.Series(1000 * np.exp(random.normal(0, 0.01, rounds_a)))
    rates_b = pd.Series(1000 * true * np.exp(random.normal(0, 0.03, rounds_b)))
    return intervals.unpaired_ratio(rates_a, rates_b)


@pytest.mark.parametrize("true", [1.0, 1.03])
@pytest.mark.parametrize(
    ("simulate", "low", "high"),
    [
        (partial(paired, rounds=3), 0.935, 0.965),
        (paired, 0.935, 0.965),
        (partial(paired, rounds=8), 0.935, 0.965),
        (partial(paired, outliers=0.1), 0.94, 1),  # it gets wider
        (partial(paired, drift=0.3), 0.93, 1),  # counts as noise
        (partial(paired, rounds=8, drift=0.3), 0.93, 0.97),  # fitted
        (partial(paired, rounds=7, drift=0.3), 0.93, 0.97),
        (partial(unpaired, rounds_a=5, rounds_b=5), 0.935, 0.965),
        (partial(unpaired, rounds_a=4, rounds_b=8), 0.935, 0.965),
    ],
)
def test_the_interval_holds_the_true_ratio_19_times_of_20(simulate, low, high, true):
    random = np.random.default_rng(3)
    ratios = [simulate(random, true) for _ in range(EXPERIMENTS)]
    assert low <= np.mean([ratio.low <= true <= ratio.high for ratio in ratios]) <= high
    wrong = ["slower"] if true > 1 else ["slower", "faster"]
    assert np.mean([ratio.verdict in wrong for ratio in ratios]) <= 0.065


def tables(random, last, rounds, count):
    """The logs of tables of seven scripts, each over the one before: an array (rounds, tables, 6).
    Each run has noise of 0.7%, and the last script is faster by that ratio."""
    machine = random.normal(0, 0.1, (rounds, count, 1))
    logs = machine + random.normal(0, 0.007, (rounds, count, 7))
    logs[:, :, -1] -= np.log(last)
    return logs[:, :, :-1] - logs[:, :, 1:]


def test_of_tables_of_equal_scripts_one_in_twenty_claims_a_difference():
    logs = tables(np.random.default_rng(11), 1.0, 5, EXPERIMENTS)
    claims = []
    for i in range(EXPERIMENTS):
        ratios = [intervals.ratio_of(pd.Series(logs[:, i, j])) for j in range(6)]
        verdicts = {ratio.verdict for ratio in intervals.holm(ratios)}
        claims.append(bool(verdicts - {Ratio.neither}))
    assert 0.02 < np.mean(claims) <= 0.06


def test_three_percent_are_found_in_eight_rounds_of_one_percent_noise():
    """The power that docs/METHOD.md states; never in the wrong direction."""
    logs = tables(np.random.default_rng(5), 1.03, 8, 300)
    verdicts = []
    for i in range(300):
        ratios = [intervals.ratio_of(pd.Series(logs[:, i, j])) for j in range(6)]
        verdicts.append(intervals.holm(ratios)[-1].verdict)
    assert verdicts.count("faster") / 300 >= 0.9 and "slower" not in verdicts


def test_holm_corrects_the_smallest_by_all_and_leaves_out_what_is_inconclusive():
    corrected = intervals.holm([Ratio(1.1, 1, 1.2, p) for p in (0.04, 0.01, math.nan, 0.03)])
    assert [r.p for r in corrected] == pytest.approx([0.06, 0.03, math.nan, 0.06], nan_ok=True)
    assert [r.verdict for r in corrected] == [
        *("no detectable difference", "faster", "inconclusive", "no detectable difference")
    ]


def test_the_interval_is_students_t_on_log_ratios():
    ratios = np.array([1.02, 1.05, 0.99, 1.03])
    ratio = intervals.speedup(pd.Series(100 * ratios), pd.Series([100.0] * 4))
    logs = np.log(ratios)
    half = 3.182446 * logs.std(ddof=1) / 2  # t for 3 degrees of freedom at 97.5%
    expected = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    assert astuple(ratio)[:3] == pytest.approx(tuple(expected), rel=1e-6)
    assert ratio.p == pytest.approx(0.171, abs=0.001)
    assert str(ratio) == "1.02x (0.98-1.06)" and ratio.verdict == "no detectable difference"
    assert intervals.speedup(pd.Series([100.0] * 4), pd.Series(150 * ratios)).verdict == "slower"


def test_a_fitted_drift_costs_one_degree_of_freedom():
    """Of seven rounds four run forwards, so the mean is not half-way between both directions."""
    logs = np.random.default_rng(7).normal(0, 0.01, 7)
    design = np.column_stack([np.ones(7), [1, -1, 1, -1, 1, -1, 1]])
    fitted, (squares,), *_ = np.linalg.lstsq(design, logs)
    error = (np.linalg.inv(design.T @ design)[0, 0] * squares / 5) ** 0.5
    half = 2.5706 * error  # of Student's t with 5 degrees of freedom
    expected = fitted[0], fitted[0] - half, fitted[0] + half
    ratio = intervals.ratio_of(pd.Series(logs))
    assert np.log(astuple(ratio)[:3]) == pytest.approx(expected, rel=1e-4)
    assert intervals.ratio_of(pd.Series([0.0] * 7)) == Ratio(1, 1, 1, 1)


def test_what_is_not_known_is_false_and_has_no_text():
    for unknown in (
        Ratio(),
        LossDifference(),
        intervals.speedup(pd.Series([1.0]), pd.Series(dtype=float)),
    ):
        assert not unknown and unknown.with_verdict == unknown.verdict == ""
    once = Ratio(1.5)
    assert once and once.with_verdict == "1.50x" and once.verdict == "inconclusive"
    assert [str(Ratio(1.0, 1.0, 1.0)), str(Ratio(0.00347))] == ["1.00x", "0.0035x"]
    assert LossDifference(math.inf).with_verdict == "diverged"


def test_a_loss_of_two_short_runs_in_a_round_is_of_whole_runs():
    steps = [10.0, *[2.0] * 6]
    rows = pd.DataFrame({"round": 0, "run_id": [*"a" * 7, *"b" * 7], "loss": 2 * steps})
    assert intervals.losses(rows.assign(held_out_loss=np.nan)).item() == np.mean(steps)


def test_losses_are_compared_within_rounds():
    """Seeds differ by far more than techniques do; the pairs see through it."""
    seeds = pd.Series([5.0, 5.4, 4.7, 5.2])
    worse = seeds + [0.010, 0.012, 0.009, 0.011]
    difference = intervals.loss_difference(seeds, worse)
    assert difference.with_verdict == "+0.0105 (+0.0084 to +0.0126), worse"
    assert intervals.loss_difference(worse, seeds).verdict == "better"
    for same in (seeds, seeds + [0.01, -0.01, 0.005, -0.004]):
        assert intervals.loss_difference(seeds, same).verdict == "indistinguishable"
    once = intervals.loss_difference(seeds[:1], worse)
    assert once.verdict == "inconclusive" and not once.interval
