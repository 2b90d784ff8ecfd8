"""Ratios and differences with the intervals that decide about them."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from Utils.base.text import number
from Utils.results import selection

CONFIDENCE = 0.95  # joint, for all intervals of a column or table
LOOK = 0.99  # for a table's ratios at one look: five looks keep CONFIDENCE (docs/METHOD.md)
# For the ratio of a patch, one of many that are tried: five looks keep 99.9%, so 50 patches 95%.
LOOK_AT_PATCH = 0.9998
WIDEST = 4  # times a ratio; a wider interval around 1 says nothing and is left out
SAME_LOSS = 0.01  # nats; losses whose interval is nearer are the same
NO_INTERVAL = "no interval: too few rounds"
INCONCLUSIVE = "inconclusive"
MEANING = "In brackets 95% intervals, which hold for all ratios of the table together"
BOLD = "bold: the interval excludes 1"


def of_each(confidence: float, count: int) -> float:
    """Return the confidence that `count` intervals need so that all hold (Sidak)."""
    return confidence ** (1 / max(count, 1))


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, whose ends are NaN if there is none.

    An unknown value is NaN and false. The interval decides: the verdict is a difference if it does
    not contain `null`.

    A subclass has `null`, the value without effect, `of_mean`, which makes a value of a mean, its
    verdicts and its format.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def by_t(cls, mean: float, error: float, freedom: float, confidence: float) -> Self:
        """Return the estimate of a mean by Student's t.

        error: standard error of the mean, NaN for an unknown one.
        freedom: degrees of freedom.
        """
        half = stdtrit(freedom, (1 + confidence) / 2) * error
        ends = cls.of_mean([mean, mean - half, mean + half])
        return cls(*ends.tolist())

    def __bool__(self):
        return math.isfinite(self.value)

    def __str__(self):
        return f"{self.text} ({self.interval})" if self.interval else self.text

    @property
    def text(self) -> str:
        return f"{number(self.value, self.form)}{self.unit}" if self else ""

    @property
    def interval(self) -> str:
        """The ends, "1.06-1.16"; "" if unknown, or for a script compared with itself."""
        if math.isnan(self.low) or self.low == self.high == self.null:
            return ""
        return f"{number(self.low, self.form)}{self.separator}{number(self.high, self.form)}"

    @property
    def verdict(self) -> str:
        if not self:
            return ""
        if math.isnan(self.low):
            return INCONCLUSIVE
        if self.low > self.null:
            return self.higher
        return self.lower if self.high < self.null else self.no_difference

    @property
    def is_different(self) -> bool:
        """True if the interval is on one side of `null`."""
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

    @classmethod
    def by_t(cls, mean: float, error: float, freedom: float, confidence: float) -> Self:
        """Return the ratio whose logarithm is a mean; without an interval that says nothing."""
        with np.errstate(over="ignore"):
            ratio = super().by_t(mean, error, freedom, confidence)
        is_wide = ratio.high - ratio.low > WIDEST * ratio.value
        return cls(ratio.value) if is_wide and not ratio.is_different else ratio

    @property
    def form(self) -> str:
        """The format with as many digits as the interval supports, and as its verdict needs."""
        if self.value < 0.1:
            return ".2g"
        width = self.high - self.low
        if width > 1 or (self.value >= 10 and not width <= 0.05):
            return ".1f"
        looks_like_null = self.is_different and "1.00" in (f"{self.low:.2f}", f"{self.high:.2f}")
        return ".3f" if looks_like_null or 1e-3 < width < 0.01 else ".2f"

    @property
    def half_width(self) -> float:
        """The distance from the value to an end, as a share; NaN without an interval."""
        return math.sqrt(self.high / self.low) - 1


@dataclass(frozen=True)
class LossDifference(Estimate):
    """A difference of losses in nats a token; infinite if a loss is NaN or infinite.

    margin: losses are equal if the interval is within +-margin; NaN: no verdict.
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
