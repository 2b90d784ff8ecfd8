"""Steps -> levels of rounds -> paired ratios and differences, with intervals and verdicts.

Runs that took turns met the same machine. So in a round the log of a run's median step is its
technique's level plus its group's, and a technique that ran in several groups ties them together.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
from scipy.special import chdtri, stdtr, stdtrit

from Utils.base.gpt2_sizes import CONFIGS
from Utils.base.text import number
from Utils.results import selection

TIE = 1e-6  # weight of a group's effect if nothing ties it to the others
LAST_STEPS = 10  # a run's loss is the mean loss of these
CONFIDENCE = 0.95
FIT_ROUNDS = 6  # from this number of rounds on, a drift is fitted
NO_INTERVAL = "one round: no interval"
INCONCLUSIVE = "inconclusive"
CORRECTED = "verdicts, and bold, are by Holm's correction over all of them"
INIT_STD = 0.02  # GPT-2's weights; an initial logit has 0.02 sqrt(n_embd)
# Rounding changes a first loss by this share of that, as a deviation over seeds (docs/FINDINGS.md).
ROUNDING = {"bfloat16": 2**-8, "float8": 2**-4.5}
CHANCE = 0.001  # probability that rounding alone is labelled "model changed"


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval, NaN with one round. An unknown value is NaN and false.

    p: probability of such a value without an effect, two-sided; NaN if fewer than two clean rounds
    leave it inconclusive.

    A subclass has `null`, the value without effect, `of_mean`, which makes a value of a mean, its
    verdicts and its format.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    @classmethod
    def by_t(cls, mean: float, error: float, freedom: float) -> Self:
        """Return the estimate of a mean by Student's t.

        error: standard error of the mean, NaN with one value.
        freedom: degrees of freedom.
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
    def text(self) -> str:
        return f"{number(self.value, self.form)}{self.unit}" if self else ""

    @property
    def interval(self) -> str:
        """The ends, "1.06-1.16"; "" with one round, or for a script compared with itself."""
        if math.isnan(self.low) or self.low == self.high == self.null:
            return ""
        return f"{number(self.low, self.form)}{self.separator}{number(self.high, self.form)}"

    @property
    def verdict(self) -> str:
        if not self:
            return ""
        if math.isnan(self.p):
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
        return ".2f" if self.value >= 0.1 else ".2g"

    def times(self, factor: float) -> Self:
        return type(self)(self.value * factor, self.low * factor, self.high * factor, self.p)


@dataclass(frozen=True)
class LossDifference(Estimate):
    """A difference of losses in nats a token; infinite if a loss is NaN or infinite."""

    null = 0.0
    of_mean = np.array
    higher = "worse"
    lower = "better"
    no_difference = "indistinguishable"
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
        return "diverged" if self.value == math.inf else super().verdict


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


def step_ms(timed: pd.DataFrame) -> pd.Series:
    """Return the milliseconds of a step of the requested batch, by technique and round."""
    if timed.empty:
        index = pd.MultiIndex.from_arrays([[], []], names=["technique", "round"])
        return pd.Series(dtype=float, index=index)

    # One value a run, with its group of runs in turns. Runs that took no turns share a group.
    group = selection.turn_groups(timed.run_id).astype(object)
    steps = timed.assign(log=np.log(scaled(timed).step_ms), group=group)
    keys = ["round", "group", "technique", "run_id"]
    runs = steps.groupby(keys, observed=True).log.median().reset_index()
    took_no_turns = ~runs.duplicated(["round", "group"], keep=False)
    runs.loc[took_no_turns, "group"] = ""

    by_round = {r: levels(run.log, run.technique, run.group) for r, run in runs.groupby("round")}
    return np.exp(pd.concat(by_round, names=["round", "technique"])).swaplevel().sort_index()


def levels(values: pd.Series, names: pd.Series, groups: pd.Series) -> pd.Series:
    """Return the level of each name by least squares.

    A value is its name's level plus its group's effect. For example, A and B took turns, then B and
    C, in a group that was slower:

        group 1: A 4, B 5
        group 2: B 7, C 8

    B ties the groups together. Their effects are -1 and +1, and the levels are A 5, B 6, C 7.
    """
    name_columns = pd.get_dummies(names, dtype=float)[names.unique()]
    group_columns = pd.get_dummies(groups, dtype=float)[groups.unique()]
    count = group_columns.shape[1]

    # Weak equations, "effect = 0": groups that no name ties together are taken as equally slow.
    ties = np.hstack([np.zeros((count, name_columns.shape[1])), TIE * np.eye(count)])
    equations = np.vstack([np.hstack([name_columns, group_columns]), ties])
    solution = np.linalg.lstsq(equations, np.concatenate([values, np.zeros(count)]))[0]
    return pd.Series(solution[:-count], name_columns.columns)


def losses(timed: pd.DataFrame) -> pd.Series:
    """Return the loss of a technique by round, in nats a token.

    It is the loss on held-out text if the rows have it, otherwise the mean of the last timed steps.
    """
    by_run = timed.groupby(["round", "run_id"], observed=True)  # turns may need several runs
    loss_of_run = by_run.held_out_loss.mean()
    if loss_of_run.isna().all():
        loss_of_run = by_run.loss.apply(final_loss)
    return loss_of_run.groupby("round").mean()


def final_loss(losses: pd.Series) -> float:
    return losses.tail(LAST_STEPS).mean()


def drift_free_mean(logs: pd.Series) -> tuple[float, float, int]:
    """Return the mean of logarithms by round, its standard error and its degrees of freedom.

    Every other round runs in reverse order, so a drift of the machine is added in one round and
    subtracted in the next. From FIT_ROUNDS on it is fitted, at the price of one degree of freedom;
    with fewer it counts as noise.
    """
    order = np.where(np.asarray(logs.index) % 2 == 0, 1.0, -1.0)
    if len(logs) < FIT_ROUNDS or not np.ptp(order):
        return logs.mean(), logs.sem(), len(logs) - 1

    # A line through them; its value at order 0 is half-way between both directions.
    line, covariance = np.polyfit(order, logs, 1, cov=True)
    return line[1], covariance[1, 1] ** 0.5, len(logs) - 2


def ratio_of(logs: pd.Series) -> Ratio:
    """Return the Ratio (geometric mean) of paired logarithms by round."""
    logs = logs.dropna().round(9)  # equal is equal
    return Ratio.by_t(*drift_free_mean(logs)) if len(logs) else Ratio()


def speedup(reference: pd.Series, medians: pd.Series) -> Ratio:
    """Return the speedup of `medians` over `reference`, both in milliseconds by round."""
    return ratio_of(np.log(reference / medians))


def typical(by_round: pd.Series) -> float:
    """Return the geometric mean over rounds; the quotient of two is their `ratio_of`."""
    return math.exp(drift_free_mean(np.log(by_round))[0])


def unpaired_ratio(a: pd.Series, b: pd.Series) -> Ratio:
    """Return the Ratio of `b` to `a`, rates by round, by Welch's t on their logarithms.

    It has no interval with one round on either side.
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


def loss_difference(reference: pd.Series, losses: pd.Series) -> LossDifference:
    """Return the paired difference of losses in nats a token by round."""
    differences = (losses - reference).dropna()
    if differences.empty:
        return LossDifference()
    if differences.eq(0).all():  # to the last bit: one round is enough to say so
        return LossDifference(0.0, 0.0, 0.0, 1.0)
    return LossDifference.by_t(differences.mean(), differences.sem(), len(differences) - 1)


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
