"""Model of a step's time on a listed device: a time for each kernel, and for the host.

A kernel lasts as long as its arithmetic or its memory traffic, whichever takes longer, plus a fixed
part. Its type, its shape and the device decide the rates of both. The host starts kernels one after
the other, and the device runs them in that order: the step ends when both have ended. Constants and
their origins are in step_time.toml.
"""

import math
from dataclasses import dataclass

import numpy as np

from tools.forecast import forecast_errors, gpus
from tools.forecast.kernel_work import TYPES
from Utils.analysis.intervals import Ratio
from Utils.base import files

# Tiles of a product's kernels: height, width, share of the best rate that they reach.
TENSOR_TILES = ((256, 128, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 64, 0.65))
PERSISTENT_TILES = ((192, 192, 1.0), *TENSOR_TILES)
SIMT_TILES = ((128, 128, 1.0), (128, 64, 0.95), (64, 64, 0.8))
SPLITS = (1, 2, 4, 8)  # parts that K may be split into
SPLIT_K = 512  # the least K of a part
SPLIT_COST = 1.03  # for adding the parts
CONSTANTS = files.tables_beside(__file__, "step_time.toml")


def constants_for(entry):
    """Return the constants of a device by name: for one that they do not serve, `elsewhere`.

    A constant that was set from one device serves that device, and no other until a second source
    bears it out.
    """
    names = {entry.key, gpus.generation(entry)}
    constants = {}
    for name, row in CONSTANTS.items():
        serves = "serves" not in row or not names.isdisjoint(row["serves"])
        constants[name] = row["value" if serves else "elsewhere"]
    return constants


@dataclass(frozen=True)
class ProductRates:
    """Rates of matrix products at the best shape and full clocks, by index of TYPES."""

    flop_s: np.ndarray
    joules: np.ndarray  # for one FLOP
    on_general_cores: np.ndarray


def best_rates(entry, c):
    """Return the ProductRates of a device. c: constants."""
    rows = []
    for precision in TYPES[:-1]:
        general = precision == "float32" or not getattr(entry, precision)
        emulated = general and precision == "bfloat16"
        peak = entry.float32 / 2 if emulated else entry.peak(precision)
        cores = "float32" if general else "tensor"

        shares = c[f"best_{cores}"]
        share = shares.get(entry.process, shares["other"])
        watt = c[f"watt_{cores}"].get(entry.process, np.inf)
        if precision == "tf32" and not general:
            watt /= 2
        rows.append((1e12 * peak * share, (1 - c["static"]) / (1e12 * watt), general))

    flop_s, joules, _ = rows[TYPES.index("bfloat16")]
    has_float8 = entry.capability >= (8, 9)
    rows.append((2 * flop_s if has_float8 else 0, joules / 2, False))
    return ProductRates(*map(np.array, zip(*rows, strict=True)))


def _product_seconds(kernels, tiles, flop_s, wave_s, sms):
    """Return seconds of products, each with its fastest tile and split of K.

    Blocks of a tile run in waves, one on each SM. A wave lasts as long as a tile's arithmetic, plus
    `wave_s` for its start and end. flop_s: rate of the best shape.
    """
    fastest = np.full(len(kernels), np.inf)
    for height, width, share in tiles:
        for rows, columns in {(height, width), (width, height)}:
            blocks = np.ceil(kernels.m / rows) * np.ceil(kernels.n / columns) * kernels.b

            for split in SPLITS:
                waves = np.ceil(blocks * split / sms)
                tile_flop = 2.0 * rows * columns * kernels.k / split
                wave_seconds = tile_flop * sms / (flop_s * share) + wave_s
                seconds = waves * wave_seconds * (SPLIT_COST if split > 1 else 1)
                allowed = (split == 1) | (kernels.k / split >= SPLIT_K)
                fastest = np.where(allowed, np.minimum(fastest, seconds), fastest)
    return fastest


def _arithmetic_seconds(kernels, entry, rates, c):
    """Return seconds of the arithmetic of products and attention at full clocks; 0 for others."""
    simt = rates.on_general_cores[kernels.type]
    flop_s = rates.flop_s[kernels.type]
    # Products on general cores
    wave_s = 1e-6 * c["wave"]
    on_general_cores = _product_seconds(kernels, SIMT_TILES, flop_s * c["simt"], wave_s, entry.sms)

    # Products on tensor cores
    tensor_flop_s = flop_s * c["tensor"]
    unaligned_flop_s = np.minimum(tensor_flop_s, 1e12 * entry.sms * c["unaligned"])
    tensor_flop_s = np.where(kernels.aligned, tensor_flop_s, unaligned_flop_s)
    # Persistent kernels stay on their SM: the end of a tile and the start of the next overlap.
    tiles = PERSISTENT_TILES if c["persistent"] < 1 else TENSOR_TILES
    wave_s = 1e-6 * (c["wave"] * c["persistent"])
    on_tensor_cores = _product_seconds(kernels, tiles, tensor_flop_s, wave_s, entry.sms)

    # Attention
    share = np.where(simt, c["attention_float32"], c["attention"] * c["cudnn_attention"])
    share = share * np.where(kernels.backward, c["backward"], 1)
    share *= kernels.n / (kernels.n + 128.0 * (1 + kernels.causal))

    return np.select(
        [kernels.family == "matmul", kernels.family == "attention"],
        [np.where(simt, on_general_cores, on_tensor_cores), kernels.flop / (flop_s * share)],
    )


def kernel_seconds(step, entry):
    """Return seconds of each kernel of StepKernels: on the device, and of the host to start it.

    Clocks fall, and arithmetic takes longer, if a step at full clocks would on average draw more
    than the power limit.
    """
    kernels = step.kernels
    c = constants_for(entry)
    rates = best_rates(entry, c)

    # Memory traffic
    share = c["memory"] * (c["slow_memory"] if entry.watts <= 75 else 1)
    share = np.where(kernels.family == "reduction", share * c["reduction"], share)
    share_outside_l2 = np.clip(1 - kernels.tensor / (entry.l2 * 2**20), 0, 1)
    share = share * (1 + c["l2"] * share_outside_l2)
    traffic_s = kernels.traffic / (entry.bandwidth * 1e9 * share)

    # At full clocks
    arithmetic_s = _arithmetic_seconds(kernels, entry, rates, c)
    copies_s = kernels.copies / (entry.bandwidth * 1e9 * c["memory"])
    device_s = np.maximum(arithmetic_s, traffic_s) + copies_s + 1e-6 * c["tail"] * kernels.launches
    for wait in ("wait", "start"):
        device_s += np.where(kernels.waits == wait, c[wait], 0)

    # At the power limit
    times = np.bincount(step.order, minlength=len(device_s))
    flop_joules = kernels.flop * rates.joules[kernels.type]
    joules = flop_joules + c["byte"] * rates.joules[0] * (kernels.traffic + kernels.copies)
    seconds_at_limit = times @ joules / (entry.watts * (1 - c["static"]))
    missing_s = seconds_at_limit - times @ device_s
    slowed_s = np.where(arithmetic_s > traffic_s, arithmetic_s, 0)
    if missing_s > 0 and slowed_s.any():
        device_s += slowed_s * missing_s / (times @ slowed_s)

    # The host starts kernels one after the other.
    shares = {
        "eager": 1,
        "compiled": c["compiled"] / c["eager"],
        "view": c["view"],
        "list": 1 + c["list"] * kernels.lists,
    }
    share = np.select([kernels.host == starter for starter in shares], [*shares.values()])
    return device_s, 1e-6 * c["eager"] * share


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, with the ends of their range, or NaN."""

    seconds: float
    seconds_by_activity: dict  # on the device
    low: float = math.nan
    high: float = math.nan
    factor: float = 1.0  # width of the range over that of steps like the published ones

    @property
    def ends(self):
        return self.seconds, self.low, self.high

    @property
    def largest_part(self):
        """The part that takes longest, and its share as text."""
        part = max(self.seconds_by_activity, key=self.seconds_by_activity.get)
        return part, f"{self.seconds_by_activity[part] / self.seconds:.0%}"


def step_time(step, entry, precision):
    """Return the StepTime of StepKernels. precision: see `forecast_errors.range_factor`."""
    kernel_s, host_s = kernel_seconds(step, entry)
    seconds = kernel_s[step.order]

    # The kernel that the host starts latest, against a device that never waits, delays the end.
    started = host_s[step.order].cumsum()
    ended = seconds.cumsum()
    busy = ended[-1]
    total = busy + np.maximum(started - (ended - seconds), 0).max()

    family = step.kernels.family[step.order]
    families = {"matrix products": "matmul", "attention": "attention", "optimizer": "optimizer"}
    parts = {name: seconds[family == key].sum() for name, key in families.items()}
    waits = total - busy + seconds[family == "host"].sum()
    parts["memory traffic"] = total - waits - sum(parts.values())
    parts["waiting for the host"] = waits

    factor = forecast_errors.range_factor(entry, precision)
    low, high = total * np.exp(np.array([-1, 1]) * forecast_errors.widths()[0] * factor)
    return StepTime(total, parts, low, high, factor)


def speedup(baseline, forecast, factor):
    """Return the Ratio of two StepTimes. factor: width of its range, as in StepTime."""
    ratio = baseline.seconds / forecast.seconds
    _, half = forecast_errors.widths()
    return Ratio(ratio, ratio * math.exp(-half * factor), ratio * math.exp(half * factor))
