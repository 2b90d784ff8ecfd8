"""The forecast of time held against published figures, as docs/forecast_check.csv keeps it.

Each row has a published time beside a forecast whose constants were fitted without its source.
`python -m tests.calibration` writes the file.
"""

from functools import cache

import numpy as np
import pandas as pd
from tabulate import tabulate

from Utils.base import paths

CHECK = paths.ROOT / "docs" / "forecast_check.csv"
PUBLISHED = paths.ROOT / "docs" / "published.csv"
LADDER = ["source", "key", "batch", "model"]  # what the rungs of one ladder have in common
WORTH = 1.05  # a ratio of two rungs beyond which its direction counts


@cache
def rows():
    """Return the rows of the check, a DataFrame; without the file it is empty."""
    if not CHECK.exists():
        return pd.DataFrame()
    table = pd.read_csv(CHECK)
    table["deviation"] = np.log(table.forecast_ms / table.measured_ms)
    table["error"] = table.forecast_ms / table.measured_ms - 1
    table["roofline_error"] = table.roofline_ms / table.measured_ms - 1
    table["in_range"] = table.measured_ms.between(table.low_ms, table.high_ms)
    return table


def ratios(table):
    """Return the published and the forecast ratio of each rung to the next of its ladder."""
    following = table.groupby(LADDER, sort=False)[["measured_ms", "forecast_ms"]].shift(-1)
    pairs = table[["measured_ms", "forecast_ms"]] / following
    return pairs.dropna().rename(columns={"measured_ms": "published", "forecast_ms": "forecast"})


def report():
    """Return the check as a table, its summary, and how many figures are left out and why."""
    table = rows()
    lines = pd.DataFrame(
        {
            "source": table.source.str.partition("/")[0],
            "device": table.key,
            "model": table.model.str[:24],
            "technique": table.technique.str[:32],
            "shape": table.batch.astype(str) + "x" + table.tokens.astype(str),
            "published ms": table.measured_ms.map("{:,.1f}".format),
            "forecast ms": table.forecast_ms.map("{:,.1f}".format),
            "range of 90%": [
                f"{low:,.1f} to {high:,.1f}"
                for low, high in zip(table.low_ms, table.high_ms, strict=True)
            ],
            "error": table.error.map("{:+.0%}".format),
            "in range": np.where(table.in_range, "yes", "no"),
            "plain roofline": table.roofline_error.map("{:+.0%}".format),
        }
    )
    shown = tabulate(lines, "keys", tablefmt="github", disable_numparse=True, showindex=False)
    left_out = pd.read_csv(PUBLISHED).left_out.dropna().value_counts(sort=False)
    reasons = [f"  {count} {reason}" for reason, count in left_out.items()]
    return "\n".join([shown, "", *summary(table), "", "Left out:", *reasons])


def summary(table):
    """Return the results of the check as lines of text."""
    lines = [_errors("all", table)]
    lines.append(_errors("GPT-2 124M", table[table.model.str.startswith("GPT-2")]))
    lines += [_errors(source, part) for source, part in table.groupby("source", sort=False)]
    pairs = ratios(table)
    pairs = pairs[pairs.published > WORTH]
    right = (pairs.forecast > 1).sum()
    error = (pairs.forecast / pairs.published - 1).abs().median()
    lines.append(
        f"rung to rung, where the published ratio is above {WORTH}: direction right in {right} of "
        f"{len(pairs)}, median error of the ratio {error:.1%}"
    )
    return lines


def _errors(name, part):
    error = part.error.abs()
    roofline = part.roofline_error.abs()
    return (
        f"{name}: {len(part)} figures, median error {error.median():.1%} (plain roofline "
        f"{roofline.median():.1%}), 90% within {error.quantile(0.9):.1%} "
        f"({roofline.quantile(0.9):.1%}); {part.in_range.mean():.0%} of them in their range"
    )
