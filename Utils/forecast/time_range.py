"""A forecast of a step's time for techniques, with its range.

A range is what 90% of the published figures kept to, each forecast without its own source:
docs/forecast_check.csv. It is wider where no figure is of that kind of chip, or of that precision.
"""

import math
import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median

import numpy as np

from Utils.base.errors import UserError
from Utils.device import datasheets
from Utils.forecast import published_check, step_time
from Utils.results import rows_file

COVERED = 0.9
OTHER_PRECISION = 1.5  # times as wide, where figures of this kind of chip are of other precisions
OTHER_CHIP = 2.0  # and where no figure is of this kind of chip
UNLISTED = 4.0  # and for a device without a datasheet, such as a CPU
UNSAID = 1.25  # where a source does not say the variant of its device or its power limit


@dataclass
class Outlook:
    """A technique's step on a device that need not be here; seconds, with the ends of the range."""

    technique: str
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    parts: dict = field(default_factory=dict)
    kernels: int = 0
    factor: float = 1.0  # how much wider the range is than where published figures are alike

    @property
    def bound(self):
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
def base_width():
    """Return half of a range, as a logarithm, for a chip and precision with published figures."""
    rows = published_check.rows()
    if rows.empty:
        return math.log(2)
    return width(rows.deviation, rows.factor)


@cache
def ratio_width():
    """Return half of a range, as a logarithm, of the ratio of a rung to the first of its ladder."""
    rows = published_check.rows()
    if rows.empty:
        return math.log(2)
    first = rows.groupby(published_check.LADDER).deviation.transform("first")
    behind = rows.duplicated(published_check.LADDER)
    return width((rows.deviation - first)[behind], 1.0)


@cache
def covered_chips():
    """Return the pairs of chip and precision of which there are published figures, a set."""
    rows = published_check.rows()
    if rows.empty:
        return set()
    pairs = zip(rows.key, rows.precision, strict=True)
    return {(chip(datasheets.find(key)), precision) for key, precision in pairs}


def speedup(baseline, outlook, factor):
    """Return (the ratio of two forecasts, the ends of its range). factor: as of their ranges."""
    ratio, half = baseline.seconds / outlook.seconds, ratio_width() * factor
    return ratio, ratio * math.exp(-half), ratio * math.exp(half)


def outlook(technique, kernels, order, entry, precision):
    """Return the Outlook of a technique's kernels, in the order in which they run. precision: of
    its matrix products, or None where they have several."""
    found = step_time.step_time(kernels, order, entry)
    factor = kind_factor(entry, precision, covered_chips())
    half = base_width() * factor
    ends = found.seconds * math.exp(-half), found.seconds * math.exp(half)
    return Outlook(technique, found.seconds, *ends, found.parts, found.kernels, factor)


def measured(args):
    """Return the median seconds of a timed step at this model and shape here, by technique."""
    path = args.results_file
    rows = rows_file.check(path, writable=False) if path.exists() else []
    wanted = {name: str(getattr(args, name)) for name in ("model", "batch_size", "seq_len")}
    wanted |= {"status": "ok", "phase": "timed", "device": args.hardware.name}
    found = {}
    for row in rows:
        if all(row[key] == value for key, value in wanted.items()):
            found.setdefault(row["technique"], []).append(float(row["step_ms"]) / 1e3)
    return {technique: median(seconds) for technique, seconds in found.items()}


def measured_entry(name, ceilings, memory):
    """Return a Datasheet of a device with its measured ceilings."""
    rates = ceilings["matmul_tflops"] | ceilings["emulated_tflops"]
    columns = {key: rates.get(key, 0.0) for key in ("float32", "tf32", "bfloat16", "float16")}
    columns |= {"bandwidth": ceilings["bandwidth_gb_s"], "process": datasheets.MEASURED}
    if known := datasheets.named(name):
        return replace(known, **columns)
    columns |= {"tf32": 0.0, "memory": memory / datasheets.SOLD, "sms": 1, "l2": 1, "year": 0}
    columns |= {"watts": math.inf, "capability": (0, 0), "source": "make ceilings"}
    return datasheets.Datasheet("here", (name,), **columns)


def prices(path):
    """Return dollars an hour by device, from a TOML file of `key = price`. Raises UserError."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: {error}", "write lines such as a100 = 1.79") from None
    for key, price in found.items():
        try:
            datasheets.find(key)
        except UserError as error:
            raise UserError(f"{path}: {error.message}", error.remedy) from None
        if type(price) not in (int, float) or not 0 <= price < math.inf:
            raise UserError(f"{path}: {key} = {price!r} is not a price in dollars an hour")
    return {datasheets.find(key).key: float(price) for key, price in found.items()}
