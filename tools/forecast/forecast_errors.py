"""Errors of the forecast of time, computed once for pages and ranges.

docs/forecast_check.csv has published figures beside forecasts with constants that were fitted
without their source; docs/forecast_blind.csv has the first forecasts of figures, made before the
forecast had seen them. It imports no torch.

A range covers 90% of the published figures if each is forecast, and its range set, without its
source. It is wider if fewer than ENOUGH sources have figures of that generation, or none has that
precision.
"""

import math
from functools import cache

import numpy as np
import pandas as pd

from tools.forecast import gpus
from Utils.base import paths

CHECK = paths.ROOT / "docs" / "forecast_check.csv"
BLIND = paths.ROOT / "docs" / "forecast_blind.csv"
LADDER = ["source", "key", "batch", "model"]  # columns that the scripts of a ladder share
COVERED = 0.9
ENOUGH = 3  # sources with figures of a generation
# Factors of the range's width
OTHER_PRECISION = 1.5  # if all figures of this generation have other precisions
OTHER_CHIP = 2.0  # if fewer than ENOUGH sources have figures of this generation
OTHER_MAKER = 2.5  # the same on AMD: with 2 only ten of twelve figures were inside


@cache
def check_rows(in_sample=False):
    """Return the rows of the check, a DataFrame.

    in_sample: those of sources that a constant was set by hand from, not those of all others.
    """
    table = pd.read_csv(CHECK)
    return with_errors(table[table.in_sample == in_sample].reset_index(drop=True))


def blind_rows():
    """Return the first forecast of each figure, with the generation and maker of its device.

    apart: why a figure does not count as blind, else "". What nobody has measured is left out.
    """
    rows = pd.read_csv(BLIND).fillna({"apart": ""}).dropna()
    keys = ["source", "key", "model", "technique", "batch", "tokens"]
    first = rows.groupby(keys, sort=False, as_index=False).first()
    sheets = first.key.map(gpus.datasheet_by_key)
    makers = sheets.map(lambda sheet: "AMD" if sheet.architecture else "NVIDIA")
    return with_errors(first.assign(generation=sheets.map(gpus.generation), maker=makers))


def with_errors(table):
    """Return a table of figures and forecasts with the errors, and whether ranges hold them."""
    in_range = table.measured_ms.between(table.low_ms, table.high_ms)
    return table.assign(error=table.forecast_ms / table.measured_ms - 1, in_range=in_range)


# Errors in words and tables ---------------------------------------------------------------------


def summary(parts):
    """Return the errors of some rows on a line each. parts: rows with errors, by title."""
    lines = []
    for name, rows in parts.items():
        error = rows.error.abs()
        lines.append(
            {
                "figures": name,
                "sources": str(rows.source.nunique()),
                "number": str(len(rows)),
                "median error": f"{error.median():.1%}",
                "90% within": f"{error.quantile(COVERED):.1%}",
                "in their range": f"{rows.in_range.mean():.0%}",
            }
        )
    return pd.DataFrame(lines)


def by_kind():
    """Return the `summary` of blind forecasts by maker and generation, of the check, and others."""
    first = blind_rows()
    blind = first[first.apart == ""]
    parts = {f"blind, {maker}": rows for maker, rows in blind.groupby("maker", sort=False)}
    parts |= {f"of these {name}": rows for name, rows in blind.groupby("generation", sort=False)}
    parts["each source left out of the fit"] = check_rows()
    parts["in-sample: ours"] = check_rows(in_sample=True)
    for (reason, maker), rows in first[first.apart != ""].groupby(["apart", "maker"]):
        parts[f"first forecast, not blind, {maker}: {reason}"] = rows
    return summary(parts)


def in_words():
    """Return sentences on the error of blind forecasts, and of published speedups of one change.

    Forecasts of these are without figures of the same source; changes of which the forecast knows
    nothing do not count.
    """
    blind = blind_rows().query("apart == ''")
    error = blind.error.abs()
    in_range = blind.in_range.mean()
    changes = speedups()
    changes = changes[np.log(changes.forecast_ms).abs() > 1e-3]
    within = (changes.forecast_ms / changes.measured_ms - 1).abs().quantile(COVERED)

    return (
        f"We checked the forecast on {len(blind)} step times that it had not seen, measured by "
        f"others on {blind.key.nunique()} GPUs with one public script. Half of the forecasts were "
        f"within {error.median():.0%}, nine in ten within {error.quantile(COVERED):.0%}; "
        f"{in_range:.0%} of the times were in the 90% range. For {len(changes)} published "
        f"speedups, also not seen, nine in ten forecasts were within {within:.0%}."
    )


def speedups():
    """Return the measured and the forecast speedup of each script to the next of its ladder."""
    rows = check_rows()
    columns = ["measured_ms", "forecast_ms"]
    return (rows[columns] / rows.groupby(LADDER, sort=False)[columns].shift(-1)).dropna()


# Ranges -----------------------------------------------------------------------------------------


def range_factor(entry, precision):
    """Return how much wider a range is than with figures of this generation and precision.

    precision: that of a step's matrix products, None if they have several.
    """
    rows = check_rows()
    generations = rows.key.map(lambda key: gpus.generation(gpus.datasheet_by_key(key)))
    rows = rows[generations == gpus.generation(entry)]
    if rows.source.nunique() < ENOUGH:
        return OTHER_MAKER if entry.architecture else OTHER_CHIP
    return 1.0 if precision in set(rows.precision) else OTHER_PRECISION


@cache
def widths():
    """Return half of two ranges, as logarithms: that of a time, and that of a speedup.

    The time is that of a step with figures of its generation and precision; the speedup is over the
    first script of its ladder.
    """
    rows = check_rows().copy()
    rows["time"] = np.log(rows.forecast_ms / rows.measured_ms)
    rows["speedup"] = rows.time - rows.groupby(LADDER).time.transform("first")
    later = rows[rows.duplicated(LADDER)]
    return half_width(rows.time / rows.factor, rows.source), half_width(later.speedup, later.source)


def half_width(deviations, sources):
    """Return half of a range that holds COVERED of the deviations, each set without its source."""
    sizes = deviations.abs()
    by_others = np.array([width(sizes[sources != source]) for source in sources])
    return width(sizes) * width(sizes / by_others)


def width(sizes):
    """Return the size that COVERED of the sizes are within."""
    sizes = np.sort(sizes)
    at = math.ceil(COVERED * (len(sizes) + 1)) - 1
    return float(sizes[min(at, len(sizes) - 1)])
