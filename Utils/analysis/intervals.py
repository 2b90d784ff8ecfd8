"""Means over rounds -> paired ratios and differences, with intervals and verdicts."""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
from scipy import optimize
from scipy.special import digamma, polygamma, stdtr, stdtrit

from Utils.base.text import number
from Utils.results import selection

CONFIDENCE = 0.95
FIT_ROUNDS = 6  # from this number of rounds on, a drift is fitted
BOLD_ROUNDS = 4  # from this number of rounds on, a difference is bold
FEWEST_RATIOS = 4  # with fewer, no variance is borrowed
WIDEST = 4  # times a ratio; a wider interval is uncertain
SAME_LOSS = 0.01  # nats; losses whose interval is nearer are the same
NO_INTERVAL = "no interval: it needs two rounds"
INCONCLUSIVE = "inconclusive"
UNCERTAIN = "uncertain"
CORRECTED = "bold: a real difference, corrected for the number of comparisons"


@dataclass(frozen=True)
class CommonVariance:
    """The variance that the log ratios of a table have in common, as Smyth (2004) estimates it.

    variance: of a ratio from round to round.
    freedom: degrees of freedom that it adds to those of a ratio, 0 if nothing is borrowed.
    most_freedom: the degrees of freedom of all ratios together, which no ratio exceeds.
    """

    variance: float = math.nan
    freedom: float = 0.0
    most_freedom: float = math.inf


NOTHING_BORROWED = CommonVariance()


@dataclass(frozen=True)
class MeanOfRounds:
    """A mean over rounds, the variance of a round, and its degrees of freedom.

    share: of that variance, the part that the mean has.
    """

    value: float
    variance: float
    freedom: int
    share: float
    rounds: int

    @classmethod
    def of(cls, values: pd.Series) -> Self:
        """Return the mean of values by round.

        Every other round runs in reverse order, so a drift of the machine is added in one round and
        subtracted in the next. From FIT_ROUNDS on it is fitted, at the price of one degree of
        freedom; with fewer it counts as noise.
        """
        rounds = len(values)
        order = (-1.0) ** np.asarray(values.index)
        degree = int(rounds >= FIT_ROUNDS and np.ptp(order) > 0)

        # Its value at order 0 is half-way between both directions.
        line, covariance = np.polyfit(order, values, degree, cov="unscaled")
        freedom = rounds - degree - 1
        squares = np.square(values - np.polyval(line, order)).sum()
        variance = squares / freedom if freedom else math.nan
        return cls(line[-1], variance, freedom, covariance[-1, -1], rounds)

    def moderated(self, common: CommonVariance) -> Self:
        """Return the mean with its variance shrunk to the common one, never below its own."""
        if not self.freedom or not common.freedom:
            return self
        weight = 1 / (1 + self.freedom / common.freedom)
        shrunk = weight * common.variance + (1 - weight) * self.variance
        freedom = min(self.freedom + common.freedom, common.most_freedom)
        return replace(self, variance=max(shrunk, self.variance), freedom=freedom)

    @property
    def error(self) -> float:
        return math.sqrt(self.variance * self.share)


def common_variance(logs: pd.DataFrame, pairs: list[tuple[str, str]]) -> CommonVariance:
    """Return the CommonVariance of the log ratios of pairs of columns.

    logs: a row a round.

    The prior is limma's (fitFDist), by the moments of the logarithms of the variances. Ratios that
    share a script are correlated, which lowers the degrees of freedom of all together.
    """
    ratios = {}
    for a, b in pairs:
        mean = MeanOfRounds.of((logs[a] - logs[b]).dropna().round(9))
        if mean.freedom:
            ratios[a, b] = mean.variance, mean.freedom
    if len(ratios) < FEWEST_RATIOS:
        return NOTHING_BORROWED
    variances, freedom = np.array([*ratios.values()]).T
    middle = np.median(variances)
    if not middle:
        return NOTHING_BORROWED
    variances = np.fmax(variances, 1e-5 * middle)  # the logarithm of 0 is infinite

    # The prior.
    half = freedom / 2
    values = np.log(variances) - digamma(half) + np.log(half)
    excess = values.var(ddof=1) - polygamma(1, half).mean()
    variance, prior_freedom = variances.mean(), math.inf
    if excess > 0:
        bounds = 1 / excess, 1 / excess + 1
        half_prior = optimize.brentq(lambda x: polygamma(1, x) - excess, *bounds)
        variance = np.exp(values.mean() + digamma(half_prior) - np.log(half_prior))
        prior_freedom = 2 * half_prior

    # The degrees of freedom of all.
    parents, scripts = zip(*ratios, strict=True)
    indicators = np.eye(len(logs.columns))
    contrasts = indicators[logs.columns.get_indexer(parents)]
    contrasts -= indicators[logs.columns.get_indexer(scripts)]
    correlations = contrasts @ contrasts.T / 2
    most = freedom.sum() * len(freedom) / np.square(correlations).sum()
    return CommonVariance(float(variance), prior_freedom, most)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval, NaN with one round. An unknown value is NaN and false.

    p: probability of such a value without an effect, two-sided; NaN leaves it inconclusive.
    rounds: that it is of. freedom: degrees of freedom of its interval.

    A subclass has `null`, the value without effect, `of_mean`, which makes a value of a mean, its
    verdicts and its format.
    """

    is_uncertain = False  # whether the interval says too little to print it

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    rounds: int = 0
    freedom: float = math.nan

    @classmethod
    def by_t(cls, mean: float, error: float, freedom: float, rounds: int) -> Self:
        """Return the estimate of a mean by Student's t.

        error: standard error of the mean, NaN with one value.
        freedom: degrees of freedom.
        """
        half = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
        p = 2 * stdtr(freedom, -abs(mean) / error) if error else mean == 0
        ends = cls.of_mean([mean, mean - half, mean + half])
        return cls(*ends.tolist(), float(p), rounds, freedom)

    def __bool__(self):
        return math.isfinite(self.value)

    def __str__(self):
        return f"{self.text} ({self.interval})" if self.interval else self.text

    @property
    def text(self) -> str:
        if self.is_uncertain:
            return UNCERTAIN
        return f"{number(self.value, self.form)}{self.unit}" if self else ""

    @property
    def interval(self) -> str:
        """The ends, "1.06-1.16"; "" with one round, or for a script compared with itself."""
        if self.is_uncertain or math.isnan(self.low) or self.low == self.high == self.null:
            return ""
        return f"{number(self.low, self.form)}{self.separator}{number(self.high, self.form)}"

    @property
    def verdict(self) -> str:
        if not self:
            return ""
        if math.isnan(self.p) or self.is_uncertain:
            return INCONCLUSIVE
        if self.p > 1 - CONFIDENCE:
            return self.no_difference
        return self.higher if self.value > self.null else self.lower

    @property
    def is_different(self) -> bool:
        """True if the verdict is a significant difference."""
        return self.verdict in (self.higher, self.lower)

    @property
    def text_with_verdict(self) -> str:
        """The text for tables, "1.11x (1.06-1.16), faster"; a verdict needs an interval."""
        return f"{self}, {self.verdict}" if self.interval else str(self)


@dataclass(frozen=True)
class Ratio(Estimate):
    """A ratio of times or rates, "1.11x (1.06-1.16)"."""

    null = 1.0
    of_mean = np.exp
    higher = "faster"
    lower = "slower"
    no_difference = "no detectable difference"
    unit = "x"
    separator = "-"

    @property
    def form(self) -> str:
        """The format with as many digits as the interval supports."""
        if self.value < 0.1:
            return ".2g"
        width = self.high - self.low
        is_coarse = width > 1 or (self.value >= 10 and not width <= 0.05)
        if 1e-3 < width < 0.01:  # with two digits both ends could read the same
            return ".3f"
        return ".1f" if is_coarse else ".2f"

    @property
    def is_uncertain(self) -> bool:
        """True for two rounds that borrow nothing, and for an interval WIDEST times the value."""
        return 0 < self.freedom <= 1 or self.high - self.low > WIDEST * self.value

    @property
    def half_width(self) -> float:
        """The distance from the value to an end, as a share; NaN without an interval."""
        return math.sqrt(self.high / self.low) - 1

    @property
    def remedy(self) -> str:
        return f"{UNCERTAIN}: ROUNDS={max(BOLD_ROUNDS, 2 * self.rounds)} would help"


@dataclass(frozen=True)
class LossDifference(Estimate):
    """A difference of losses in nats a token; infinite if a loss is NaN or infinite.

    margin: losses are the same if the interval is within it to both sides; NaN: not judged.
    """

    margin: float = SAME_LOSS

    null = 0.0
    of_mean = np.array
    higher = "worse"
    lower = "better"
    no_difference = INCONCLUSIVE

    form = "+.4f"
    unit = ""
    separator = " to "

    @property
    def text(self) -> str:
        if self.value == math.inf:
            return "diverged"
        return "0" if self.value == 0 else super().text

    @property
    def verdict(self) -> str:
        if self.value == math.inf:
            return "diverged"
        if math.isnan(self.margin):
            return ""
        if max(-self.low, self.high) < self.margin:
            return "same"
        return super().verdict

    @property
    def words(self) -> str:
        """The difference in words for a table, "worse by 0.350"; "" if it is small."""
        size = f"{abs(self.value):.3f}"
        if self.is_different:
            return f"{self.verdict} by {size}"
        if abs(self.value) > self.margin and self.verdict == INCONCLUSIVE:
            return f"{size} {'higher' if self.value > 0 else 'lower'}, {INCONCLUSIVE}"
        return self.verdict if self.value == math.inf else ""


def holm(estimates: list[Estimate]) -> list[Estimate]:
    """Return the Estimates of one table with p corrected by Holm.

    Of 20 tables of equal scripts, at most one is expected to claim a difference.
    """
    p = pd.Series([estimate.p for estimate in estimates], dtype=float).sort_values()
    as_small = p.count() - np.arange(len(p))  # itself and those that follow
    corrected = (p * as_small).cummax().clip(upper=1)
    return [replace(estimate, p=float(corrected[i])) for i, estimate in enumerate(estimates)]


def scaled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with step_ms scaled to a step on the requested batch."""
    return rows.assign(step_ms=rows.step_ms * rows.requested_batch_size / rows.batch_size)


def by_step(rows: pd.DataFrame, most: int) -> tuple[pd.DataFrame, int]:
    """Return median, min and max of `scaled` step_ms over the rounds, and the steps in a row.

    The index is technique and step; step 0 is the first timed one. Steps are put together so that
    a technique has at most about `most` rows.
    """
    steps = selection.numbered(scaled(rows))
    size = math.ceil((np.ptp(steps.step) + 1) / most)
    keys = ["technique", steps.step // size * size]
    return steps.groupby(keys, observed=True).step_ms.agg(["median", "min", "max"]), size


def ratio_of(logs: pd.Series, common: CommonVariance = NOTHING_BORROWED) -> Ratio:
    """Return the Ratio (geometric mean) of paired logarithms by round."""
    logs = logs.dropna().round(9)  # equal is equal
    if logs.empty:
        return Ratio()
    mean = MeanOfRounds.of(logs).moderated(common)
    return Ratio.by_t(mean.value, mean.error, mean.freedom, mean.rounds)


def speedup(reference: pd.Series, medians: pd.Series) -> Ratio:
    """Return the speedup of `medians` over `reference`, both in milliseconds by round."""
    return ratio_of(np.log(reference / medians))


def typical(by_round: pd.Series) -> float:
    """Return the geometric mean over rounds; the quotient of two is their `ratio_of`."""
    return math.exp(MeanOfRounds.of(np.log(by_round)).value)


def unpaired_ratio(a: pd.Series, b: pd.Series) -> Ratio:
    """Return the Ratio of `b` to `a`, rates by round, by Welch's t on their logarithms.

    It has no interval with one round on either side.
    """
    a, b = a.dropna(), b.dropna()
    if a.empty or b.empty:
        return Ratio()

    means = MeanOfRounds.of(np.log(a)), MeanOfRounds.of(np.log(b))
    variances = np.square([mean.error for mean in means])
    freedoms = np.array([mean.freedom for mean in means])
    freedom = freedoms.min()
    if variances.any():
        freedom = variances.sum() ** 2 / (variances**2 / freedoms).sum()
    rounds = min(mean.rounds for mean in means)
    return Ratio.by_t(means[1].value - means[0].value, variances.sum() ** 0.5, freedom, rounds)
