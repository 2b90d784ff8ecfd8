"""Peaks of the allocator, held against the table of `make forecast`."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

EXPECTED = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())
FORECAST_ERROR = 0.05  # share of the allocator's peak


@dataclass
class Line:
    """A line of the table.

    facts: its figures in docs/virtual_gpu.csv, if it is a run.
    """

    name: str
    problems: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    seconds: float = 0.0


def forecast(lines, batch_size, table):
    """Compare peaks at a shape with the table of `make forecast`, a text.

    Techniques that ran out of memory must be forecast not to fit.
    """
    # Forecast GiB, and whether they fit
    line = Line("forecast against the allocator")
    rows = re.findall(r"^(\w+) +(\d+\.\d+) +(\d+)\b", table, re.MULTILINE)
    if not rows:
        line.problems.append("make forecast printed no table")
    forecasts = {name: (float(peak), int(fits) >= batch_size) for name, peak, fits in rows}

    for facts in (run.facts for run in lines):
        name = facts["technique"]
        same_batch = facts["batch_size"] == str(batch_size)  # larger_batch has another
        if name not in forecasts or not same_batch:
            continue

        gib, fits = forecasts[name]
        facts["forecast_mib"] = round(gib * 1024)
        if facts["status"] == "out_of_memory" and fits:
            line.problems.append(f"{name}: {gib:.2f} GiB forecast, which do not fit")
        if facts["status"] == "ok" and not forecast_is_near(facts):
            peak = float(facts["peak_mib"]) / 1024
            line.problems.append(f"{name}: {gib:.2f} GiB forecast, {peak:.2f} allocated")
    return line


def forecast_is_near(facts):
    """Return whether a forecast is near enough to the allocator's peak. facts: as in Line."""
    most_error = EXPECTED["forecast_error"].get(facts["technique"], FORECAST_ERROR)
    forecast = float(facts["forecast_mib"])
    return abs(forecast / float(facts["peak_mib"]) - 1) <= most_error
