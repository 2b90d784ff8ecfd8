"""Intervals of ratios and losses: by hand, and their coverage in simulations."""

import math
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest

from tools.docs import coverage
from Utils.analysis import intervals, losses
from Utils.analysis.intervals import LossDifference, Ratio


def paired(random, true, rounds, outliers=0.0, drift=0.0):
    """The Ratio of two scripts in rounds whose machine drifts, each run with noise of 0.7%.

    outliers: share of the runs that took up to half as long again. drift: of the machine within a
    round, which meets the other script in every other round.
    """
    order = np.where(np.arange(rounds) % 2 == 0, 1, -1)
    logs = random.normal(0, 0.007, (2, rounds)) + random.normal(0, 0.1, rounds)
    logs += (random.random((2, rounds)) < outliers) * random.uniform(0.05, 0.4, (2, rounds))
    script, parent = np.exp(logs)
    return intervals.speedup(pd.Series(true * np.exp(drift * order) * parent), pd.Series(script))


@pytest.mark.parametrize(
    "true, rounds, disturbed, low, high",
    [
        (1.0, 4, {}, 0.93, 0.97),
        (1.03, 3, {}, 0.93, 0.97),
        (1.03, 5, {"outliers": 0.1}, 0.94, 1),  # it gets wider
        (1.03, 5, {"drift": 0.3}, 0.93, 1),  # counts as noise
        (1.0, 8, {"drift": 0.3}, 0.93, 0.97),  # fitted
    ],
)
def test_interval_has_the_true_ratio_19_times_of_20(true, rounds, disturbed, low, high):
    """README: "The same script under two names gets "no detectable difference" 19 times of 20".

    METHOD: "Under a drift of 30% the interval of eight rounds holds the true ratio 93% to 97% of
    the time".
    """
    random = np.random.default_rng(3)
    ratios = [paired(random, true, rounds, **disturbed) for _ in range(1000)]
    assert low <= np.mean([ratio.low <= true <= ratio.high for ratio in ratios]) <= high
    wrong = ["slower"] if true > 1 else ["slower", "faster"]
    assert np.mean([ratio.verdict in wrong for ratio in ratios]) <= 0.07


def verdicts(last, rounds, count, seed):
    """The verdicts of tables of seven scripts, of which the last is faster by that ratio."""
    random = np.random.default_rng(seed)
    logs = random.normal(0, 0.007, (count, 7, rounds)) + random.normal(0, 0.1, (count, 1, rounds))
    logs[:, -1] -= np.log(last)
    for table in logs[:, :-1] - logs[:, 1:]:
        ratios = [intervals.ratio_of(pd.Series(over_parent)) for over_parent in table]
        yield [ratio.verdict for ratio in intervals.holm(ratios)]


def test_holm_leaves_one_table_of_equal_scripts_in_twenty_with_a_difference():
    """METHOD: "Of 2,000 tables of seven equal scripts at most 6% claim a difference"."""
    claims = [{*table} != {Ratio.no_difference} for table in verdicts(1.0, 5, 2000, seed=11)]
    assert 0.02 < np.mean(claims) <= 0.06


def test_holm_leaves_a_difference_of_three_percent():
    """METHOD: "At 1% noise, a table of eight rounds finds a difference of 3% in 99 of 100"."""
    last = [table[-1] for table in verdicts(1.03, 8, 300, seed=5)]
    assert last.count("faster") >= 297 and "slower" not in last


def test_holm_corrects_the_smallest_by_all_and_leaves_out_what_is_inconclusive():
    corrected = intervals.holm([Ratio(1.1, p=p) for p in (0.04, 0.01, math.nan, 0.03)])
    assert [r.p for r in corrected] == pytest.approx([0.06, 0.03, math.nan, 0.06], nan_ok=True)


SAME = pd.Series([100.0] * 4)
RATIOS = pd.Series([1.02, 1.05, 0.99, 1.03])
LOGS = pd.Series([0.02, -0.01, 0.03, 0.0, 0.01, -0.02, 0.04])
RATES = pd.Series([80, 81, 79.5, 82]), pd.Series([100, 104, 98])


@pytest.mark.parametrize(
    "ratio, numbers",
    [
        (intervals.speedup(100 * RATIOS, SAME), (1.0222697, 0.9831180, 1.0629805, 0.1705451)),
        (intervals.ratio_of(LOGS), (1.0075282, 0.9958933, 1.0192990, 0.1578388)),
        (intervals.unpaired_ratio(*RATES), (1.2482861, 1.1699895, 1.3318224, 0.0023811)),
        (intervals.ratio_of(0 * LOGS), (1, 1, 1, 1)),
    ],
)
def test_ratio_is_the_one_by_hand(ratio, numbers):
    """METHOD: "Student's t on the log ratios, 95%, with one degree of freedom fewer than rounds.

    With six rounds or more, the difference between forward and backward rounds is fitted as well.
    This costs one degree of freedom".
    """
    assert astuple(ratio)[:4] == pytest.approx(numbers, rel=1e-4)


def test_common_variance_is_the_prior_of_the_variances():
    """METHOD: "each variance is shrunk to their common one, never below its own, and degrees of
    freedom are added". Here they are scaled inverse chi-squared, with 6 degrees of freedom.
    """
    random = np.random.default_rng(2)
    names = [f"{script}{n}" for n in range(400) for script in "ab"]
    deviations = np.repeat(0.02 * np.sqrt(6 / random.chisquare(6, 400) / 2), 2)
    logs = pd.DataFrame(deviations * random.standard_normal((4, 800)), columns=names)
    pairs = list(zip(names[::2], names[1::2], strict=True))
    common = intervals.common_variance(logs, pairs)
    assert common.variance == pytest.approx(0.02**2, rel=0.1)
    assert common.freedom == pytest.approx(6, rel=0.4) and common.most_freedom == 1200
    assert intervals.common_variance(logs, pairs[:3]) == intervals.NOTHING_BORROWED

    noisy = intervals.MeanOfRounds(0.0, 1.0, 3, 0.25, 4).moderated(common)
    assert (noisy.variance, noisy.freedom) == (1.0, 3 + common.freedom)


@pytest.mark.slow
def test_interval_of_two_rounds_has_the_true_ratio():
    """METHOD has the coverage of the intervals, by `python -m tools.docs.coverage`."""
    for kind in coverage.KINDS:
        parent, base, _ = coverage.coverage(kind, 2, 200)
        assert 0.91 <= parent <= 0.99 and 0.91 <= base <= 1


SEEDS = pd.Series([5.0, 5.4, 4.7, 5.2])  # seeds differ by far more than techniques do
WORSE = SEEDS + [0.010, 0.012, 0.009, 0.011]


@pytest.mark.parametrize(
    "estimate, text, verdict",
    [
        (intervals.speedup(SAME, 150 * RATIOS), "0.65x (0.63-0.68), slower", "slower"),
        (intervals.ratio_of(LOGS[:1]), "1.02x", "inconclusive"),
        (intervals.ratio_of(0 * LOGS), "1.00x", "no detectable difference"),
        (intervals.speedup(SAME, SAME[:0]), "", ""),
        (
            losses.loss_difference(SEEDS, WORSE),
            "+0.0105 (+0.0084 to +0.0126), worse",
            "worse",
        ),
        (losses.loss_difference(WORSE[:1], SEEDS), "-0.0100", "inconclusive"),
        (LossDifference(math.inf), "diverged", "diverged"),
    ],
)
def test_estimate_has_a_text_and_a_verdict(estimate, text, verdict):
    """METHOD: "One round gives no interval"; "The baseline's loss is subtracted within a round"."""
    assert (estimate.text_with_verdict, estimate.verdict) == (text, verdict)
    assert bool(estimate) == (text not in ("", "diverged"))


def test_losses_are_of_held_out_text_or_of_the_last_steps_of_each_run():
    steps = [99.0, *[3.0] * 9, 2.0]
    rows = pd.DataFrame({"round": 0, "run_id": [*"a" * 11, *"b" * 11], "loss": 2 * steps})
    for held_out_loss, expected in ((np.nan, 2.9), (4.5, 4.5)):
        assert losses.loss_of_round(rows.assign(held_out_loss=held_out_loss)).item() == expected
