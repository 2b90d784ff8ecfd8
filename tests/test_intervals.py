"""Ratios from one fit, and differences of losses: by hand, and what tables of noise claim."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from Utils.analysis import intervals, losses
from Utils.analysis.intervals import LossDifference, Ratio
from Utils.analysis.levels import fit


def runs_of(**logs):
    """Runs of scripts that took turns in rounds, for `fit`. A None has not run."""
    return pd.DataFrame(
        [
            {"script": name, "group": r, "round": r, "log": log}
            for name, by_round in logs.items()
            for r, log in enumerate(by_round)
            if log is not None
        ]
    )


def family(*pairs):
    return ({frozenset(pair) for pair in pairs},)


SLOW = np.array([0.0, 0.7, -0.2, 0.4, 0.1, -0.6])  # what the machine adds in a round
NOISE = np.array([0.02, -0.01, 0.03, 0.0, 0.01, -0.02])


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_ratio_of_two_scripts_is_students_t_on_paired_logarithms(rounds):
    """METHOD: "Student's t", at the confidence of one look."""
    runs = runs_of(a=SLOW[:rounds], b=SLOW[:rounds] - 0.1 + NOISE[:rounds])
    ratio = fit(runs, families=family("ab")).ratio("a", "b")
    differences = 0.1 - NOISE[:rounds]
    expected = stats.ttest_1samp(differences, 0).confidence_interval(intervals.LOOK)
    assert math.log(ratio.value) == pytest.approx(differences.mean())
    assert [ratio.low, ratio.high] == pytest.approx(np.exp(expected), rel=1e-3)


def test_ratio_of_six_rounds_has_the_effect_of_their_direction_taken_off():
    """METHOD: "From six rounds on, each script has a term for the direction of a round"."""
    direction = np.array([1, -1] * 3)
    logs = {"a": SLOW, "b": SLOW - 0.1 + 0.05 * direction + NOISE}
    six = fit(runs_of(**logs), families=family("ab")).ratio("a", "b")
    five = fit(runs_of(**{name: log[:5] for name, log in logs.items()})).ratio("a", "b")
    assert math.log(six.value) == pytest.approx(0.1 - NOISE.mean())
    assert six.high - six.low < 0.4 * (five.high - five.low)


def test_times_are_tied_through_others_and_divide_to_the_ratios():
    """METHOD: "each ratio is the quotient of the two printed times, even if runs are missing"; "One
    factor scales all times to the baseline's measured time".
    """
    levels = fit(
        runs_of(
            a=SLOW[:4],
            b=[SLOW[0] - 0.1, SLOW[1] - 0.1, None, None],
            c=[None, SLOW[1] - 0.3, SLOW[2] - 0.3, None],
            alone=[None] * 4 + [2.0, 2.0],
        ),
        "b",
    )
    assert math.log(levels.step_ms("b")) == pytest.approx(SLOW[:2].mean() - 0.1)

    for name, log in {"b": 0.1, "c": 0.3}.items():
        ratio = levels.ratio("a", name)
        assert math.log(ratio.value) == pytest.approx(log)
        assert levels.step_ms("a") / levels.step_ms(name) == pytest.approx(ratio.value)
    assert levels.is_alone("alone") and not levels.is_alone("c")
    lone = levels.ratio("a", "alone")
    assert lone.value < 1 and not lone.interval and not levels.ratio("a", "missing")


def test_ratio_is_not_widened_by_the_noise_of_another_script():
    """METHOD: "Each script has a variance of its own [...] and runs are weighted by it"."""
    random = np.random.default_rng(4)
    quiet = {name: SLOW + 0.01 * random.standard_normal(6) for name in "abc"}
    loud = quiet | {"d": SLOW + 0.5 * random.standard_normal(6)}
    widths = [
        fit(runs_of(**logs), families=family("ab")).ratio("a", "b").half_width
        for logs in (quiet, loud)
    ]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)


def test_variance_is_shrunk_but_not_below_the_measured():
    """METHOD: "limma's equations". Variances are scaled inverse chi-squared, with 6 degrees of
    freedom, and each script has 4 - 1 of its own.
    """
    random = np.random.default_rng(2)
    deviations = 0.02 * np.sqrt(6 / random.chisquare(6, 150))
    noise = deviations[:, None] * random.standard_normal((150, 4))
    levels = fit(runs_of(**{f"{n:03}": of_script for n, of_script in enumerate(noise)}))
    own = noise.var(axis=1, ddof=1)
    expected = np.fmax(own, (6 * 0.02**2 + 3 * own) / 9)
    assert levels.freedoms == pytest.approx(np.full(150, 9), rel=0.3)
    assert np.median(levels.variances / expected) == pytest.approx(1, rel=0.1)


def test_intervals_of_a_table_are_wider_the_more_ratios_it_has():
    """METHOD: "Sidak's correction for the number of distinct ratios", of those with one."""
    runs = runs_of(a=SLOW, b=SLOW + NOISE, c=SLOW - NOISE[::-1])
    pairs = family("ab"), family("ab", "ba", "bc", "ac"), family("ab", "bc", "ac", "xy")
    alone, table, more = [fit(runs, families=each).ratio("a", "b") for each in pairs]
    assert table == more and table.low < alone.low < alone.value == table.value


PARENTS = [*map(frozenset, itertools.pairwise("abcdefg"))]
TABLE = {*PARENTS, *(frozenset(("a", script)) for script in "bcdefg")}


def simulated_table(random, noise, rounds=10, faster=0.0):
    """Return runs of seven scripts, in two groups of turns a round that share one script.

    noise: of the logarithm of each run. faster: logarithm of the last one's ratio to its parent.
    """
    machine = np.repeat(0.1 * random.standard_normal((rounds, 2)), 4, axis=1)
    runs = pd.DataFrame({"script": [*"abcddefg"] * rounds, "log": (noise + machine).ravel()})
    runs["group"] = runs.index // 4
    runs["round"] = runs.index // 8
    runs["log"] -= faster * (runs.script == "g")
    return runs


def equal(random, shape):
    return 0.01 * random.standard_normal(shape)


def heavy_tails(random, shape):
    return 0.01 * random.standard_t(3, shape)


def bursts(random, shape):
    """Noise, and in a tenth of the runs another program, which takes up to a fifth of the time."""
    return equal(random, shape) + (random.random(shape) < 0.1) * random.uniform(0, 0.2, shape)


@pytest.mark.parametrize("noise", [equal, heavy_tails, bursts])
def test_tables_of_equal_scripts_rarely_claim_something_at_five_looks(noise):
    """METHOD has the shares of 1,000 tables."""
    random = np.random.default_rng(7)
    claims = 0
    for _ in range(60):
        runs = simulated_table(random, noise(random, (10, 8)))
        looks = [fit(runs[runs["round"] < n], families=(TABLE,)) for n in (2, 4, 6, 8, 10)]
        pairs = itertools.product(looks, map(sorted, TABLE))
        claims += any(look.ratio(*pair).is_different for look, pair in pairs)
    assert claims <= 7  # at 5%, chance gives 8 in 1%


def test_table_of_four_rounds_finds_ten_percent_and_one_of_eight_four():
    """METHOD: "a table of four rounds finds a difference of 10%, and one of eight rounds 4%"."""
    random = np.random.default_rng(1)
    for rounds, faster in ((4, 0.1), (8, 0.04)):
        detections = 0
        for _ in range(40):
            runs = simulated_table(random, equal(random, (rounds, 8)), rounds, faster)
            ratio = fit(runs, families=(TABLE,)).ratio("f", "g")
            detections += ratio.verdict == "faster"
        assert detections >= 38


SEEDS = pd.Series([5.0, 5.4, 4.7, 5.2])  # seeds differ by far more than techniques do
WORSE = SEEDS + [0.010, 0.012, 0.009, 0.011]


@pytest.mark.parametrize(
    "estimate, text, verdict",
    [
        (Ratio(0.65, 0.63, 0.68), "0.65x (0.63-0.68), slower", "slower"),
        (Ratio(1.02, 1.001, 1.04), "1.020x (1.001-1.040), faster", "faster"),
        (Ratio.by_t(0.1, 1, 3, 0.95), "1.11x", "inconclusive"),  # 0.05 to 27
        (Ratio.by_t(5, 1, 3, 0.95), "148.4x (6.2-3577.6), faster", "faster"),
        (Ratio(1, 1, 1), "1.00x", "no detectable difference"),
        (Ratio(), "", ""),
        (
            losses.loss_difference(SEEDS, WORSE),
            "+0.0105 (+0.0084 to +0.0126), worse",
            "worse",
        ),
        (
            losses.loss_difference(SEEDS, WORSE, count=6),
            "+0.0105 (+0.0065 to +0.0145), worse",
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
