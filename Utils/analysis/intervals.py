"""Steps -> levels of rounds -> paired ratios and differences, with intervals and verdicts.

Runs that took turns met the same machine. So in a round the log of a run's median step is its
technique's level plus its group's, and a technique that ran in several groups ties them together.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import chdtri, stdtr, stdtrit

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import number
from Utils.results import selection

TIE = 1e-6  # weight of a group's effect where nothing ties it to the others
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
    """A value with its 95% interval, NaN with one round. An unknown value is NaN and false.

    p: of no effect, two-sided; NaN where fewer than two clean rounds leave it inconclusive. A
    subclass has `null`, the value without effect, `of_mean`, which makes a value of a mean, its
    verdicts and its format.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def by_t(cls, mean, error, freedom):
        """Return the estimate of a mean by Student's t. error: its standard error, with so many
        degrees of freedom; NaN with one value.
        """
        half = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
        p = 2 * stdtr(freedom, -abs(mean) / error) if error else mean == 0
        ends = cls.of_mean([mean, mean - half, mean + half])
        return cls(*ends.tolist(), float(p))

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
    def verdict(self):
        if not self:
            return ""
        if math.isnan(self.p):
            return INCONCLUSIVE
        if self.p > 1 - CONFIDENCE:
            return self.neither
        return self.above if self.value > self.null else self.below

    @property
    def with_verdict(self):
        """The text for tables, "1.11x (1.06-1.16), faster"; a verdict needs an interval."""
        return f"{self}, {self.verdict}" if self.interval else str(self)


@dataclass(frozen=True)
class Ratio(Estimate):
    """A ratio of times or rates, "1.11x (1.06-1.16)"."""

    null = 1.0
    of_mean = np.exp
    above = "faster"
    below = "slower"
    neither = "no detectable difference"
    form = property(lambda self: ".2f" if self.value >= 0.1 else ".2g")
    unit = "x"
    separator = "-"

    def times(self, factor):
        return type(self)(self.value * factor, self.low * factor, self.high * factor, self.p)


@dataclass(frozen=True)
class LossDifference(Estimate):
    """A difference of losses in nats a token; infinite of a loss that is no number."""

    null = 0.0
    of_mean = np.array
    above = "worse"
    below = "better"
    neither = "indistinguishable"
    form = "+.4f"
    unit = ""
    separator = " to "

    @property
    def text(self):
        if self.value == math.inf:
            return "diverged"
        return "0" if self.value == 0 else super().text

    @property
    def verdict(self):
        return "diverged" if self.value == math.inf else super().verdict


def numbers(estimates):
    """Return value, low and high of a Series of Estimates, a DataFrame with the same index."""
    ends = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    return pd.DataFrame(ends, estimates.index, ["value", "low", "high"], dtype=float)


def holm(estimates):
    """Return the Estimates of one table, a list, with p corrected by Holm: of 20 tables of equal
    scripts at most one claims a difference.
    """
    p = pd.Series([estimate.p for estimate in estimates], dtype=float).sort_values()
    as_small = np.arange(p.count(), p.count() - len(p), -1)  # itself and those that follow
    corrected = (p * as_small).cummax().clip(upper=1)
    return [replace(estimate, p=float(corrected[i])) for i, estimate in enumerate(estimates)]


def scaled(rows):
    """Return the rows with step_ms as of a step on the requested batch."""
    return rows.assign(step_ms=rows.step_ms * rows.requested_batch_size / rows.batch_size)


def by_step(rows, most):
    """Return median, min and max of `scaled` step_ms over the rounds, by technique and step, of
    which 0 is the first timed one; and how many steps a row stands for, to have at most `most`.
    """
    steps = selection.numbered(scaled(rows))
    size = max(1, math.ceil((steps.step.max() - steps.step.min() + 1) / most))
    keys = ["technique", steps.step // size * size]
    return steps.groupby(keys, observed=True).step_ms.agg(["median", "min", "max"]), size


def step_ms(timed):
    """Return the ms of a step of the requested batch, a Series by technique and round."""
    if timed.empty:
        index = pd.MultiIndex.from_arrays([[], []], names=["technique", "round"])
        return pd.Series(dtype=float, index=index)
    group = selection.turn_groups(timed.run_id).astype(object)
    keys = ["round", "group", "technique", "run_id"]
    runs = timed.assign(log=np.log(scaled(timed).step_ms), group=group)
    runs = runs.groupby(keys, observed=True).log.median().reset_index()
    runs.loc[~runs.duplicated(["round", "group"], keep=False), "group"] = ""  # took no turns
    by_round = {r: levels(run.log, run.technique, run.group) for r, run in runs.groupby("round")}
    return np.exp(pd.concat(by_round, names=["round", "technique"])).swaplevel().sort_index()


def levels(values, names, groups):
    """Return the level of each name by least squares: a value is its name's plus its group's."""
    of_names = pd.get_dummies(names, dtype=float)[names.unique()]
    of_groups = pd.get_dummies(groups, dtype=float)[groups.unique()]
    count = of_groups.shape[1]
    # Groups that no name ties to others are taken as equally disturbed.
    ties = np.hstack([np.zeros((count, of_names.shape[1])), TIE * np.eye(count)])
    equations = np.vstack([np.hstack([of_names, of_groups]), ties])
    solution = np.linalg.lstsq(equations, np.concatenate([values, np.zeros(count)]))[0]
    return pd.Series(solution[:-count], of_names.columns)


def losses(timed):
    """Return the loss of a technique by round, a Series in nats a token: on held-out text where the
    rows have it, else the mean of the last timed steps.
    """
    by_run = timed.groupby(["round", "run_id"], observed=True)  # of which turns may need several
    losses = by_run.held_out_loss.mean()
    losses = losses if losses.notna().any() else by_run.loss.apply(final_loss)
    return losses.groupby("round").mean()


def final_loss(losses):
    return losses.tail(LAST_STEPS).mean()


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
    """Return the Ratio (geometric mean) of paired logarithms, a Series by round."""
    logs = logs.dropna().round(9)  # equal is equal
    return Ratio.by_t(*drift_free_mean(logs)) if len(logs) else Ratio()


def speedup(reference, medians):
    """Return the speedup of `medians` over `reference`, Series of milliseconds by round."""
    return ratio_of(np.log(reference / medians))


def typical(by_round):
    """Return the geometric mean of a Series by round, of which `ratio_of` is the quotient."""
    return math.exp(drift_free_mean(np.log(by_round))[0])


def unpaired_ratio(a, b):
    """Return the Ratio of `b` to `a` (of the geometric means) by Welch's t. It has no interval with
    one round on either side. a, b: Series of rates by round.
    """
    a, b = a.dropna(), b.dropna()
    if a.empty or b.empty:
        return Ratio()
    mean_a, error_a, freedom_a = drift_free_mean(np.log(a))
    mean_b, error_b, freedom_b = drift_free_mean(np.log(b))
    variances = np.square([error_a, error_b])
    freedom = min(freedom_a, freedom_b)
    if variances.any():
        freedom = variances.sum() ** 2 / (variances**2 / [freedom_a, freedom_b]).sum()
    return Ratio.by_t(mean_b - mean_a, variances.sum() ** 0.5, freedom)


def loss_difference(reference, losses):
    """Return the paired LossDifference of two Series of nats a token by round."""
    differences = (losses - reference).dropna()
    if differences.empty:
        return LossDifference()
    if differences.eq(0).all():  # to the last bit, for which one round is enough
        return LossDifference(0.0, 0.0, 0.0, 1.0)
    return LossDifference.by_t(differences.mean(), differences.sem(), len(differences) - 1)


def parity(reference, losses, model, rounding="bfloat16", fewer_updated=False):
    """Return "exact" (all losses are equal), "model changed" or "numerics changed".

    Before the first update both have the same weights and batch, so the first loss compares the
    models; rounding has its CHANCE. reference, losses: Series of nats, indexed by round and step.
    rounding: the coarsest type in use. fewer_updated: some parameters were never updated.
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
