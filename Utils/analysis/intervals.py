"""Paired ratios and differences over rounds, with intervals and verdicts."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.special import chdtri, stdtr, stdtrit

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import number

LAST_STEPS = 10  # whose mean loss is a run's loss
CONFIDENCE = 0.95
FIT_ROUNDS = 6  # from which a drift is fitted
NO_INTERVAL = "one round: no interval"
INCONCLUSIVE = "inconclusive"
CORRECTED = "verdicts, and bold, are by Holm's correction over all of them"
INIT_STD = 0.02  # of GPT-2's weights; an initial logit's is 0.02 sqrt(n_embd)
# Of that: what rounding changes a first loss by, as a deviation over seeds (docs/FINDINGS.md).
ROUNDING = {"bfloat16": 2**-8, "float8": 2**-4.5}
CHANCE = 0.001  # that rounding alone is labelled "model changed"


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval. All are NaN where it is unknown, then it is false; low and
    high alone with one round.

    p: of no effect, two-sided; NaN where fewer than two clean rounds leave it inconclusive.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    # Of a subclass: the value without effect, the verdicts, the format.
    null: ClassVar = 0.0
    above: ClassVar = ""
    below: ClassVar = ""
    neither: ClassVar = ""
    form: ClassVar = ""
    unit: ClassVar = ""
    separator: ClassVar = " to "

    def __bool__(self):
        return math.isfinite(self.value)

    def __str__(self):
        return f"{self.text} ({self.interval})" if self.interval else self.text

    @property
    def text(self):
        return f"{number(self.value, self.form)}{self.unit}" if self else ""

    @property
    def interval(self):
        """The ends, "1.06-1.16"; "" with one round, or of a script compared with itself."""
        if math.isnan(self.low) or self.low == self.high == self.null:
            return ""
        return f"{number(self.low, self.form)}{self.separator}{number(self.high, self.form)}"

    @property
    def is_different(self):
        return self.p <= 1 - CONFIDENCE

    @property
    def verdict(self):
        if not self:
            return ""
        if math.isnan(self.p):
            return INCONCLUSIVE
        if not self.is_different:
            return self.neither
        return self.above if self.value > self.null else self.below

    @property
    def with_verdict(self):
        """The text for tables, "1.11x (1.06-1.16), faster"; a verdict needs an interval."""
        return f"{self}, {self.verdict}" if self.interval else str(self)


@dataclass(frozen=True)
class Ratio(Estimate):
    """A ratio of times or rates, "1.11x (1.06-1.16)"."""

    null: ClassVar = 1.0
    above: ClassVar = "faster"
    below: ClassVar = "slower"
    neither: ClassVar = "no detectable difference"
    form: ClassVar = ".2f"
    unit: ClassVar = "x"
    separator: ClassVar = "-"

    @classmethod
    def of_logs(cls, mean, error, freedom):
        """Return the ratio whose logarithm has that mean, as for `by_t`."""
        *logs, p = by_t(mean, error, freedom)
        return cls(*np.exp(logs).tolist(), p)

    def times(self, factor):
        return type(self)(self.value * factor, self.low * factor, self.high * factor, self.p)


@dataclass(frozen=True)
class LossDifference(Estimate):
    """A difference of losses, "+0.0120 (+0.0020 to +0.0220)", in nats a token.

    diverged: true of a loss that is no number.
    """

    diverged: bool = False

    above: ClassVar = "worse"
    below: ClassVar = "better"
    neither: ClassVar = "indistinguishable"
    form: ClassVar = "+.4f"

    @property
    def text(self):
        if self.diverged:
            return "diverged"
        return "0" if self.value == 0 else super().text

    @property
    def verdict(self):
        return "diverged" if self.diverged else super().verdict


def numbers(estimates):
    """Return value, low and high of a Series of Estimates, a DataFrame with the same index."""
    ends = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    return pd.DataFrame(ends, estimates.index, ["value", "low", "high"], dtype=float)


def holm(estimates):
    """Return the Estimates of one table, a list, with p corrected by Holm: of 20 tables of equal
    scripts at most one claims a difference."""
    p = pd.Series([estimate.p for estimate in estimates], dtype=float).sort_values()
    as_small = np.arange(p.count(), p.count() - len(p), -1)  # itself and those that follow
    corrected = (p * as_small).cummax().clip(upper=1)
    return [replace(estimate, p=float(corrected[i])) for i, estimate in enumerate(estimates)]


def losses(timed):
    """Return the loss of a technique by round, a Series in nats a token: on held-out text where the
    rows have it, else the mean of the last timed steps."""
    by_round = timed.groupby("round")
    held_out = by_round.held_out_loss.mean()
    return held_out if held_out.notna().any() else by_round.loss.apply(final_loss)


def final_loss(losses):
    return losses.tail(LAST_STEPS).mean()


def by_t(mean, error, freedom):
    """Return a mean, the ends of its interval and p of a mean of 0, by Student's t.

    error: its standard error, with so many degrees of freedom; NaN with one value.
    """
    half = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    p = 2 * stdtr(freedom, -abs(mean) / error) if error else mean == 0
    return float(mean), float(mean - half), float(mean + half), float(p)


def drift_free_mean(logs):
    """Return the mean of logarithms by round, its standard error and its degrees of freedom.

    Every other round runs in reverse order, so a drift of the machine adds to one and is taken from
    the next. From FIT_ROUNDS on it is fitted, at the price of one degree of freedom; with fewer it
    counts as noise. logs: Series indexed by round.
    """
    order = np.where(np.asarray(logs.index) % 2 == 0, 1.0, -1.0)
    if len(logs) < FIT_ROUNDS or not np.ptp(order):
        return logs.mean(), logs.sem(), len(logs) - 1
    # A line through them; its value at order 0 is half-way between both directions.
    line, covariance = np.polyfit(order, logs, 1, cov=True)
    return line[1], covariance[1, 1] ** 0.5, len(logs) - 2


def ratio_of(logs):
    """Return the Ratio (geometric mean) of paired logarithms, a Series by round; unknown without
    one."""
    logs = logs.dropna().round(9)  # equal is equal
    return Ratio.of_logs(*drift_free_mean(logs)) if len(logs) else Ratio()


def speedup(reference, medians):
    """Return the paired speedup of `medians` over `reference` from their common rounds: Series of
    milliseconds by round."""
    return ratio_of(np.log(reference / medians))


def typical(by_round):
    """Return the time (or rate) of which `ratio_of` is the quotient, a geometric mean over the
    rounds of a Series."""
    return math.exp(drift_free_mean(np.log(by_round))[0])


def unpaired_ratio(a, b):
    """Return the Ratio of `b` to `a` (of the geometric means) by Welch's t. It has no interval with
    one round on either side. a, b: Series of rates by round."""
    mean_a, error_a, freedom_a = drift_free_mean(np.log(a))
    mean_b, error_b, freedom_b = drift_free_mean(np.log(b))
    variances = np.square([error_a, error_b])
    freedom = min(freedom_a, freedom_b)
    if variances.any():
        freedom = variances.sum() ** 2 / (variances**2 / [freedom_a, freedom_b]).sum()
    return Ratio.of_logs(mean_b - mean_a, variances.sum() ** 0.5, freedom)


def loss_difference(reference, losses):
    """Return the paired LossDifference of `losses` and `reference`, Series of nats a token by
    round; unknown without a common round."""
    differences = (losses - reference).dropna()
    if differences.empty:
        return LossDifference()
    if differences.eq(0).all():  # to the last bit, for which one round is enough
        return LossDifference(0.0, 0.0, 0.0, 1.0)
    return LossDifference(*by_t(differences.mean(), differences.sem(), len(differences) - 1))


def parity(reference, losses, model, rounding="bfloat16", fewer_updated=False):
    """Return "exact" if the losses of all steps are equal to the last bit, else "model changed" or
    "numerics changed".

    Before the first update both have the same weights and batch, so the first loss compares the
    models. Rounding changes it by as much with many tokens as with few. The model is another
    where rounding gives such squares less than once in a thousand times. reference, losses: Series
    of nats, indexed by round and step. model: its name. rounding: the coarsest type in use, of
    ROUNDING. fewer_updated: true if some of the baseline's parameters were never updated.
    """
    common = losses.index.intersection(reference.index)
    differences = losses[common] - reference[common]
    if len(common) and differences.eq(0).all():
        return "exact"
    first = differences[common.get_level_values("step") == 0].dropna()
    if model in CONFIGS and len(first):
        deviation = ROUNDING[rounding] * INIT_STD * CONFIGS[model].n_embd ** 0.5
        if ((first / deviation) ** 2).sum() > chdtri(len(first), CHANCE):
            return "model changed"
    return "model changed" if fewer_updated else "numerics changed"
