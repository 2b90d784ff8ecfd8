"""Steps -> levels of rounds -> paired ratios and differences, with intervals and verdicts.

A run's level is the log of its median step. Runs that took turns met the same machine: if that
makes ratios steadier, a level is its technique's plus its group's, and a technique that ran in
several groups ties them together.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
from scipy import optimize, sparse
from scipy.special import chdtri, digamma, polygamma, stdtr, stdtrit

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import number
from Utils.results import selection

TIE = 1e-4  # weight of a group's effect if nothing ties it to the others
LAST_STEPS = 10  # a run's loss is the mean loss of these
CONFIDENCE = 0.95
WORTH_FITTING = 0.5  # times the variance: the most that the model of groups may leave
FIT_ROUNDS = 6  # from this number of rounds on, a drift is fitted
BOLD_ROUNDS = 4  # from this number of rounds on, a difference is bold
FEWEST_RATIOS = 4  # with fewer, no variance is borrowed
WIDEST = 4  # times a ratio; a wider interval is uncertain
SAME_LOSS = 0.01  # nats; losses whose interval is nearer are the same
NO_INTERVAL = "one round: no interval"
INCONCLUSIVE = "inconclusive"
UNCERTAIN = "uncertain"
CORRECTED = "verdicts, and bold, are by Holm's correction over all of them"
INIT_STD = 0.02  # GPT-2's weights; an initial logit has 0.02 sqrt(n_embd)
# Rounding changes a first loss by this share of that, as a deviation over seeds (docs/FINDINGS.md).
ROUNDING = {"bfloat16": 2**-8, "float8": 2**-4.5}
CHANCE = 0.001  # probability that rounding alone is labelled "model changed"


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
        order = np.where(np.asarray(values.index) % 2 == 0, 1.0, -1.0)
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
    means = [MeanOfRounds.of((logs[a] - logs[b]).dropna().round(9)) for a, b in pairs]
    variances = np.array([mean.variance for mean in means])
    freedom = np.array([mean.freedom for mean in means], dtype=float)
    has_variance = freedom > 0
    middle = np.median(variances[has_variance]) if has_variance.sum() >= FEWEST_RATIOS else 0
    if not middle:
        return NOTHING_BORROWED
    variances = np.fmax(variances[has_variance], 1e-5 * middle)  # the logarithm of 0 is infinite
    freedom = freedom[has_variance]

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
    parents, scripts = np.array(pairs)[has_variance].T
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
    def is_uncertain(self) -> bool:
        """True if the interval says too little to print it."""
        return False

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
        return ".1f" if is_coarse else ".2f"

    @property
    def is_uncertain(self) -> bool:
        """True for two rounds that borrow nothing, and for an interval WIDEST times the value."""
        return 0 < self.freedom <= 1 or self.high - self.low > WIDEST * self.value

    @property
    def remedy(self) -> str:
        return f"{UNCERTAIN}: ROUNDS={max(BOLD_ROUNDS, 2 * self.rounds)} would help"

    def times(self, factor: float) -> Self:
        return replace(
            self, value=self.value * factor, low=self.low * factor, high=self.high * factor
        )


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
    same = "same"
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
            return self.same
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


def numbers(estimates: pd.Series) -> pd.DataFrame:
    """Return value, low and high of Estimates, with the same index."""
    ends = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    return pd.DataFrame(ends, estimates.index, ["value", "low", "high"], dtype=float)


def holm(estimates: list[Estimate]) -> list[Estimate]:
    """Return the Estimates of one table with p corrected by Holm.

    Of 20 tables of equal scripts, at most one is expected to claim a difference.
    """
    p = pd.Series([estimate.p for estimate in estimates], dtype=float).sort_values()
    as_small = np.arange(p.count(), p.count() - len(p), -1)  # itself and those that follow
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
    size = max(1, math.ceil((steps.step.max() - steps.step.min() + 1) / most))
    keys = ["technique", steps.step // size * size]
    return steps.groupby(keys, observed=True).step_ms.agg(["median", "min", "max"]), size


@dataclass(frozen=True)
class Levels:
    """Levels of the scripts of a study, from which all of its times and ratios are.

    logs: logarithms of milliseconds a step of the requested batch, a row a round, a column a
        script.
    common: the variance that ratios borrow.
    are_fitted: by the model of groups. Then the base's time is still its measured one.
    """

    logs: pd.DataFrame
    common: CommonVariance
    are_fitted: bool

    def ratio(self, reference: str, script: str) -> Ratio:
        """Return the speedup of a script over another, false if one has no timings."""
        if reference not in self.logs or script not in self.logs:
            return Ratio()
        if reference == script:
            return Ratio(1.0, 1.0, 1.0, 1.0)
        return ratio_of(self.logs[reference] - self.logs[script], self.common)

    def step_ms(self, script: str) -> float:
        """Return the mean over rounds; the quotient of two is their ratio."""
        return math.exp(MeanOfRounds.of(self.logs[script].dropna()).value)


def levels_of(timed: pd.DataFrame, parents: dict[str, str], base: str) -> Levels:
    """Return the Levels of timed steps.

    A level is the median of the run's steps, or what the model of groups makes of it, if the model
    halves the variance of the ratios over the parent. One round cannot tell: the model is used.

    parents: of each script.
    base: the script whose time the model leaves as it was measured.
    """
    # One value a run, with its group of runs in turns. Runs that took no turns share a group.
    steps = timed.assign(log=np.log(scaled(timed).step_ms))
    steps["group"] = selection.turn_groups(timed.run_id).astype(object)
    keys = ["round", "group", "technique", "run_id"]
    runs = steps.groupby(keys, observed=True).log.median().reset_index()
    took_no_turns = ~runs.duplicated(["round", "group"], keep=False)
    runs.loc[took_no_turns, "group"] = ""

    # The measured levels.
    runs["script"] = runs.groupby(["round", "technique"]).ngroup()
    by_script = runs.groupby("script")
    index = pd.MultiIndex.from_frame(by_script[["round", "technique"]].first())
    measured = pd.Series(by_script.log.mean().to_numpy(), index).unstack()
    pairs = []
    for name, parent in parents.items():
        if {parent, name} <= {*measured} and measured[[parent, name]].notna().all(axis=1).any():
            pairs.append((parent, name))
    if not runs.script.duplicated().any():  # no script ties groups together
        return Levels(measured, common_variance(measured, pairs), False)

    # Those of the model.
    groups = runs.groupby(["round", "group"]).ngroup()
    fitted = pd.Series(fit_levels(runs.log, runs.script, groups), index).unstack()
    if _spread(fitted, pairs) > WORTH_FITTING * _spread(measured, pairs):
        return Levels(measured, common_variance(measured, pairs), False)
    kept = base if base in measured else measured.columns[0]
    means = [MeanOfRounds.of(logs[kept].dropna()).value for logs in (measured, fitted)]
    fitted += means[0] - means[1]
    return Levels(fitted, common_variance(fitted, pairs), True)


def _spread(logs, pairs):
    """Return the geometric mean variance of the log ratios of pairs, NaN without two rounds."""
    variances = pd.Series([(logs[a] - logs[b]).var() for a, b in pairs], dtype=float)
    return np.exp(np.log(variances + TIE**2).mean())


def fit_levels(values: pd.Series, names: pd.Series, groups: pd.Series) -> np.ndarray:
    """Return the level of each name by least squares. names, groups: numbers from 0 on.

    A value is its name's level plus its group's effect. For example, A and B took turns, then B and
    C, in a group that was slower:

        group 1: A 4, B 5
        group 2: B 7, C 8

    B ties the groups together. Their effects are -1 and +1, and the levels are A 5, B 6, C 7.
    """
    count = names.max() + 1
    positions = np.tile(np.arange(len(values)), 2), np.append(names, count + groups)
    equations = sparse.csr_array((np.ones(2 * len(values)), positions))

    # Weak equations, "effect = 0": groups that no name ties together are taken as equally slow.
    ties = sparse.diags_array(np.repeat([0.0, TIE**2], [count, groups.max() + 1]))
    normal = (equations.T @ equations + ties).tocsc()
    return sparse.linalg.spsolve(normal, equations.T @ values.to_numpy())[:count]


def losses(timed: pd.DataFrame) -> pd.Series:
    """Return the loss of a technique by round, in nats a token.

    It is the loss on held-out text if the rows have it, otherwise the mean of the last timed steps.
    """
    keys = ["round", "run_id"]  # turns may need several runs
    loss_of_run = timed.groupby(keys, observed=True).held_out_loss.mean()
    if loss_of_run.isna().all():
        last = timed.groupby(keys, observed=True).tail(LAST_STEPS)
        loss_of_run = last.groupby(keys, observed=True).loss.mean()
    return loss_of_run.groupby("round").mean()


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


def loss_difference(
    reference: pd.Series, losses: pd.Series, margin: float = SAME_LOSS
) -> LossDifference:
    """Return the paired difference of losses in nats a token by round. margin: of the same loss."""
    differences = (losses - reference).dropna()
    rounds = len(differences)
    difference = LossDifference()
    if rounds and differences.eq(0).all():  # to the last bit: one round is enough to say so
        difference = LossDifference(0.0, 0.0, 0.0, 1.0, rounds)
    elif rounds:
        mean, error = differences.mean(), differences.sem()
        difference = LossDifference.by_t(mean, error, rounds - 1, rounds)
    return replace(difference, margin=margin)


def parity(
    reference: pd.Series,
    losses: pd.Series,
    model: str,
    rounding: str = "bfloat16",
    fewer_updated: bool = False,
) -> str:
    """Return "exact" (all losses are equal), "model changed" or "numerics changed".

    Before the first update both have the same weights and batch, so the first loss compares the
    models. Rounding alone gives "model changed" with the probability CHANCE.

    reference, losses: nats, indexed by round and step.
    rounding: the coarsest type in use.
    fewer_updated: some parameters were never updated.
    """
    common = losses.index.intersection(reference.index)
    differences = losses[common] - reference[common]
    if len(common) and differences.eq(0).all():
        return "exact"

    first = differences[common.get_level_values("step") == 0].dropna()
    changed = fewer_updated
    if model in CONFIGS and len(first):
        deviation = ROUNDING[rounding] * INIT_STD * CONFIGS[model].n_embd ** 0.5
        changed |= ((first / deviation) ** 2).sum() > chdtri(len(first), CHANCE)
    return "model changed" if changed else "numerics changed"
