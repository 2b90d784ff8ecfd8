"""Model of a step's time on a device of the table: a time for each kernel, and for the host.

A kernel lasts as long as the larger of its FLOP over the rate that its type, shape and device allow
and its bytes over the bandwidth that they allow, plus a fixed part. The host starts kernels one
after the other, and the device runs them in that order: the step ends when both have ended.
Constants and their origins are in step_time.toml.

A range is what 90% of the published figures kept to, each forecast without its own source:
docs/forecast_check.csv. It is wider where no figure is of that kind of chip or precision.
"""

import math
import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from tools.forecast import gpus
from tools.forecast.kernel_kinds import KINDS
from tools.forecast.kernel_work import ATTENTION, HOST, MATMUL, OPTIMIZER, REDUCTION, TYPES
from Utils.analysis.intervals import Ratio
from Utils.base import paths

# Tiles of a product's kernels with the share of the best rate that each reaches.
TILES = {"tensor": ((256, 128, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 64, 0.65))}
TILES["persistent"] = ((192, 192, 1.0), *TILES["tensor"])
TILES["simt"] = ((128, 128, 1.0), (128, 64, 0.95), (64, 64, 0.8))
SPLITS = (1, 2, 4, 8)  # of K, each with at least so many numbers:
SPLIT_K = 512
SPLIT_COST = 1.03  # for adding the parts
FILE = Path(__file__).with_name("step_time.toml")
# Published times beside forecasts whose constants were fitted without their source, written by
# `python -m tools.calibration`.
CHECK = paths.ROOT / "docs" / "forecast_check.csv"
LADDER = ["source", "key", "batch", "model"]  # what the rungs of one ladder have in common
COVERED = 0.9
OTHER_PRECISION = 1.5  # times as wide, where figures of this kind of chip are of other precisions
OTHER_CHIP = 2.0  # and where no figure is of this kind of chip
OTHER_MAKER = 2.5  # and on AMD, where at 2 only ten of twelve blind figures were inside
UNLISTED = 4.0  # and for a device without a datasheet, such as a CPU


@cache
def constants():
    """Return the values of step_time.toml by name."""
    return {name: row["value"] for name, row in tomllib.loads(FILE.read_text()).items()}


def best_rates(entry, c):
    """Return of products of each of TYPES: FLOP/s at the best shape and full clocks, joules a FLOP,
    and whether general cores compute them. c: constants.
    """
    rates = []
    for precision in TYPES[:-1]:
        general = precision == "float32" or not getattr(entry, precision)
        emulated = general and precision == "bfloat16"
        peak = entry.float32 / 2 if emulated else entry.peak(precision)
        cores = "float32" if general else "tensor"
        shares = c[f"best_{cores}"] | {gpus.MEASURED: 1}
        share = shares.get(entry.process, shares["other"])
        watt = c[f"watt_{cores}"].get(entry.process, np.inf)
        if precision == "tf32" and not general:
            watt /= 2
        rates.append((1e12 * peak * share, (1 - c["static"]) / (1e12 * watt), general))
    flop_s, joules, _ = rates[TYPES.index("bfloat16")]
    float8 = 2 * flop_s if entry.capability >= (8, 9) else 0
    return map(np.array, zip(*rates, (float8, joules / 2, False), strict=True))


def _product_seconds(k, entry, rates, wave, tiles, share):
    """Return seconds of products, each with its fastest tile and split of K.

    Blocks run in waves, one on each SM; a wave lasts as long as a tile's FLOP take and its start
    and end, `wave` microseconds. k: kernels of products. rates: FLOP/s of the best shape.
    """
    best = np.full(len(k.m), np.inf)
    for height, width, of_best in tiles:
        for tall, wide in {(height, width), (width, height)}:
            covered = np.ceil(k.m / tall) * np.ceil(k.n / wide) * k.b
            for split in SPLITS:
                waves = np.ceil(covered * split / entry.sms)
                tile_flop = 2.0 * tall * wide * k.k / split
                seconds = tile_flop * entry.sms / (rates * share * of_best) + 1e-6 * wave
                seconds = waves * seconds * SPLIT_COST ** (split > 1)
                allowed = (split == 1) | (k.k / split >= SPLIT_K)
                best = np.minimum(best, np.where(allowed, seconds, np.inf))
    return best


def kernel_seconds(step, entry, c):
    """Return seconds of each kernel of StepKernels: on the device, and of the host to launch it.

    Where a step would draw more than the power limit on average, clocks fall: arithmetic takes
    longer. c: constants.
    """
    k = step.kernels
    rates, joules, general = best_rates(entry, c)
    simt = general[k.type]
    best = rates[k.type]

    top = best * c["tensor"]
    top = np.where(k.aligned, top, np.minimum(top, 1e12 * entry.sms * c["unaligned"]))
    by_lanes = _product_seconds(k, entry, best, c["wave"], TILES["simt"], c["simt"])
    # Kernels that stay on their SM: the end of a tile and the start of the next one overlap.
    persistent = entry.capability[0] in (9, 10) and not entry.architecture
    wave = c["wave"] * (c["persistent"] if persistent else 1)
    of_flash = c["attention"] * (c["cudnn_attention"] if persistent else 1)
    tiles = TILES["persistent" if persistent else "tensor"]
    by_tensor_cores = _product_seconds(k, entry, top, wave, tiles, 1)
    product_seconds = np.where(simt, by_lanes, by_tensor_cores)

    share = np.where(simt, c["attention_float32"], of_flash)
    share = share * np.where(k.backward, c["backward"], 1)
    share *= k.n / (k.n + 128.0 * (1 + k.causal))
    families = [k.family == MATMUL, k.family == ATTENTION]
    flop_seconds = np.select(families, [product_seconds, k.flop / (best * share)])

    reach = c["memory"] * (c["slow_memory"] if entry.watts <= 75 else 1)
    reach = np.where(k.family == REDUCTION, reach * c["reduction"], reach)
    reach = reach * (1 + c["l2"] * np.clip(1 - k.tensor / (entry.l2 * 2**20), 0, 1))
    byte_seconds = k.traffic / (entry.bandwidth * 1e9 * reach)

    byte_copies = k.copies / (entry.bandwidth * 1e9 * c["memory"])
    device = np.maximum(flop_seconds, byte_seconds) + byte_copies + 1e-6 * c["tail"] * k.launches
    device += np.choose(k.waits, (0, c["wait"], c["start"]))
    times = np.bincount(step.order, minlength=len(device))
    energy = times @ (k.flop * joules[k.type] + c["byte"] * joules[0] * (k.traffic + k.copies))
    lacking = energy / (entry.watts * (1 - c["static"])) - times @ device
    slowed = np.where(flop_seconds > byte_seconds, flop_seconds, 0)
    if lacking > 0 and slowed.any():
        device += slowed * lacking / (times @ slowed)
    # in the order of EAGER, COMPILED, VIEW and LIST
    shares = 1, c["compiled"] / c["eager"], c["view"], 1 + c["list"] * k.lists
    return device, 1e-6 * c["eager"] * np.choose(k.host, shares)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, with the ends of their range where it is known."""

    seconds: float
    parts: dict  # seconds of the device, by what it spends them on
    low: float = math.nan
    high: float = math.nan
    factor: float = 1.0  # how much wider the range is than where published figures are alike
    kind_ms: dict = field(default_factory=dict)  # by kind of work; idle: waiting for the host

    @property
    def ends(self):
        return self.seconds, self.low, self.high

    @property
    def mostly(self):
        part = max(self.parts, key=self.parts.get)
        return f"{part} {self.parts[part] / self.seconds:.0%}"


def step_time(step, entry, c=None):
    """Return the StepTime of StepKernels. c: constants."""
    device, host = kernel_seconds(step, entry, c or constants())
    seconds = device[step.order]
    started = host[step.order].cumsum()
    done = seconds.cumsum()
    total = done[-1] + np.maximum(started - (done - seconds), 0).max()
    family = step.kernels.family[step.order]
    families = {"matrix products": MATMUL, "attention": ATTENTION, "optimizer": OPTIMIZER}
    parts = {name: seconds[family == number].sum() for name, number in families.items()}
    waits = total - done[-1] + seconds[family == HOST].sum()
    parts["memory traffic"] = total - waits - sum(parts.values())
    parts["waiting for the host"] = waits
    kind_of = step.kernels.kind[step.order]
    kind_ms = {kind: 1e3 * seconds[kind_of == kind].sum() for kind in KINDS}
    kind_ms["idle"] = 1e3 * waits
    return StepTime(total, parts, kind_ms=kind_ms)


def range_factor(entry, precision, covered=None):
    """Return how much wider a range is than with figures of this chip and precision.

    precision: of the matrix products of a step, None where they have several. covered: pairs of a
    device's key and a precision that have figures, by default those of the check.
    """
    if covered is None:
        covered = zip(check_rows().key, check_rows().precision, strict=True)
    covered = {(gpus.find(key).chip, its_precision) for key, its_precision in covered}
    if (entry.chip, precision) in covered:
        return 1.0
    if not any(entry.capability):  # no datasheet
        return UNLISTED
    chips = {covered_chip for covered_chip, _ in covered}
    unknown = OTHER_MAKER if entry.architecture else OTHER_CHIP
    return OTHER_PRECISION if entry.chip in chips else unknown


def width(deviations, factors):
    """Return half of a range, as a logarithm, that covers COVERED of the deviations. factors: how
    much wider the range of each is.
    """
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
    precision, and of the ratio of a rung to the first of its ladder.
    """
    rows = check_rows()
    first = rows.groupby(LADDER).deviation.transform("first")
    behind = rows.duplicated(LADDER)
    return width(rows.deviation, rows.factor), width((rows.deviation - first)[behind], 1.0)


def speedup(baseline, forecast, factor):
    """Return the Ratio of two StepTimes. factor: as of their ranges."""
    ratio = baseline.seconds / forecast.seconds
    _, half = widths()
    return Ratio(ratio, ratio * math.exp(-half * factor), ratio * math.exp(half * factor))


def time_forecast(kernels, entry, precision):
    """Return the StepTime of StepKernels with its range. precision: as for `range_factor`."""
    step = step_time(kernels, entry)
    factor = range_factor(entry, precision)
    half = widths()[0] * factor
    low, high = step.seconds * np.exp([-half, half])
    return replace(step, low=low, high=high, factor=factor)
