"""A forecast of a step's time with its range.

A range is what 90% of the published figures kept to, each forecast without its own source:
docs/forecast_check.csv. It is wider where no figure is of that kind of chip, or of that precision.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from Utils.analysis.intervals import Ratio
from Utils.base import paths
from Utils.device import datasheets
from Utils.forecast import step_time

# Published times beside forecasts whose constants were fitted without their source, written by
# `python -m tests.calibration`.
CHECK = paths.ROOT / "docs" / "forecast_check.csv"
LADDER = ["source", "key", "batch", "model"]  # what the rungs of one ladder have in common
COVERED = 0.9
OTHER_PRECISION = 1.5  # times as wide, where figures of this kind of chip are of other precisions
OTHER_CHIP = 2.0  # and where no figure is of this kind of chip
UNLISTED = 4.0  # and for a device without a datasheet, such as a CPU
UNSAID = 1.25  # where a source does not say the variant of its device or its power limit


@dataclass(frozen=True)
class TimeForecast:
    """A technique's step on a device; seconds, with the ends of the range."""

    seconds: float
    low: float
    high: float
    parts: dict  # seconds of the device, by what it spends them on
    factor: float = 1.0  # how much wider the range is than where published figures are alike

    @property
    def mostly(self):
        part = max(self.parts, key=self.parts.get)
        return f"{part} {self.parts[part] / self.seconds:.0%}"


def chip(entry):
    """Return the kind of a chip. Forecasts for one kind are assumed to be equally good."""
    return entry.architecture or entry.capability


def kind_factor(entry, precision, covered):
    """Return the factor by which a range is wider than with figures of this chip and precision.
    covered: the pairs of the two that have figures."""
    if (chip(entry), precision) in covered:
        return 1.0
    if not entry.year:
        return UNLISTED
    chips = {covered_chip for covered_chip, _ in covered}
    return OTHER_PRECISION if chip(entry) in chips else OTHER_CHIP


def width(deviations, factors):
    """Return half of a range, as a logarithm, that covers COVERED of the deviations. factors: how
    much wider the range of each is."""
    sizes = np.sort(np.abs(np.asarray(deviations)) / factors)
    at = math.ceil(COVERED * (len(sizes) + 1)) - 1
    return float(sizes[min(at, len(sizes) - 1)])


@cache
def check_rows():
    """Return the rows of the check, a DataFrame."""
    table = pd.read_csv(CHECK)
    table["deviation"] = np.log(table.forecast_ms / table.measured_ms)
    table["error"] = table.forecast_ms / table.measured_ms - 1
    table["roofline_error"] = table.roofline_ms / table.measured_ms - 1
    table["in_range"] = table.measured_ms.between(table.low_ms, table.high_ms)
    return table


@cache
def widths():
    """Return half of a range, as a logarithm, of a step with published figures of its chip and
    precision, and of the ratio of a rung to the first of its ladder."""
    rows = check_rows()
    first = rows.groupby(LADDER).deviation.transform("first")
    behind = rows.duplicated(LADDER)
    return width(rows.deviation, rows.factor), width((rows.deviation - first)[behind], 1.0)


@cache
def covered_chips():
    """Return the pairs of chip and precision of which there are published figures, a set."""
    rows = check_rows()
    return {(chip(datasheets.find(row.key)), row.precision) for row in rows.itertuples()}


def speedup(baseline, forecast, factor):
    """Return the Ratio of two TimeForecasts. factor: as of their ranges."""
    ratio = baseline.seconds / forecast.seconds
    _, half = widths()
    return Ratio(ratio, ratio * math.exp(-half * factor), ratio * math.exp(half * factor))


def time_forecast(kernels, entry, precision):
    """Return the TimeForecast of a step's StepKernels. precision: of its matrix products, or None
    where they have several."""
    step = step_time.step_time(kernels, entry)
    factor = kind_factor(entry, precision, covered_chips())
    half, _ = widths()
    low = step.seconds * math.exp(-half * factor)
    high = step.seconds * math.exp(half * factor)
    return TimeForecast(step.seconds, low, high, step.parts, factor)
