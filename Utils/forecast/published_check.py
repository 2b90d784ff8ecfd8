"""The forecast of time held against published figures, as docs/forecast_check.csv keeps it.

Each row has a published time beside a forecast whose constants were fitted without its source.
`python -m tests.calibration` writes the file.
"""

from functools import cache

import numpy as np
import pandas as pd

from Utils.base import paths

CHECK = paths.ROOT / "docs" / "forecast_check.csv"
LADDER = ["source", "key", "batch", "model"]  # what the rungs of one ladder have in common
SHOWN = ["key", "model", "technique", "batch", "tokens", "measured_ms", "forecast_ms", "error"]


@cache
def rows():
    """Return the rows of the check, a DataFrame."""
    table = pd.read_csv(CHECK)
    table["deviation"] = np.log(table.forecast_ms / table.measured_ms)
    table["error"] = table.forecast_ms / table.measured_ms - 1
    table["roofline_error"] = table.roofline_ms / table.measured_ms - 1
    table["in_range"] = table.measured_ms.between(table.low_ms, table.high_ms)
    return table


def report():
    """Return the check as a table, and its summary by source."""
    table = rows()
    lines = table[SHOWN].assign(error=table.error.map("{:+.0%}".format))
    parts = {"all": table, "GPT-2 124M": table[table.model.str.startswith("GPT-2")]}
    parts |= dict(list(table.groupby("source", sort=False)))
    summary = [_summary(name, part) for name, part in parts.items()]
    return "\n".join([lines.to_markdown(index=False, floatfmt=",.1f"), "", *summary])


def _summary(name, part):
    error = part.error.abs()
    roofline = part.roofline_error.abs()
    return (
        f"{name}: {len(part)} figures, median error {error.median():.1%} (plain roofline "
        f"{roofline.median():.1%}), 90% within {error.quantile(0.9):.1%} "
        f"({roofline.quantile(0.9):.1%}); {part.in_range.mean():.0%} of them in their range"
    )
