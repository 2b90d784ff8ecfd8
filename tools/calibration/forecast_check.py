"""The forecast compared with published figures, each source left out of the fit in turn."""

from dataclasses import replace

import numpy as np
import pandas as pd

from tools.calibration import forecast_fit, other_models
from tools.forecast import gpus, step_time
from tools.forecast.forecast_plan import import_compiler
from tools.forecast.forks import in_processes
from tools.forecast.gpus import ImaginedGPU
from Utils.base.units import GIB

GPU = ImaginedGPU("published", 80 * GIB)
# Factor of a range if a source does not say the variant of its device or its power limit
UNSAID = 1.25


def works(figures):
    """Return the StepOperations of each figure's step, traced at few layers and a prime batch."""
    steps = {}
    for figure in figures:
        for layers in forecast_fit.TRACED_LAYERS:
            steps[replace(figure.step, batch=forecast_fit.PRIME, layers=layers)] = None

    import_compiler()
    answers = in_processes(other_models.work, [(step, GPU) for step in steps])
    return dict(zip(steps, answers, strict=True))


def check(figures, cases, constants_by_source):
    """Return the rows of docs/forecast_check.csv, a DataFrame.

    Each figure is beside a forecast with constants that were fitted without its source, and a range
    that was set without it.
    """
    # Forecasts
    figures = [figure for figure in figures if figure.is_forecast]
    rows = []
    for figure in figures:
        step = cases.step_time(figure, constants_by_source[figure.source])
        rows.append(
            {
                "source": figure.source,
                "key": figure.key,
                "model": figure.model,
                "technique": figure.technique,
                "batch": figure.step.batch,
                "tokens": figure.step.tokens,
                "precision": figure.precision,
                "measured_ms": 1e3 * figure.seconds,
                "forecast_ms": 1e3 * step.seconds,
                "roofline_ms": 1e3 * cases.roofline(figure),
                "bound": step.drop("seconds").idxmax(),
            }
        )
    table = pd.DataFrame(rows)
    rooflines = table.pop("roofline_ms")
    bounds = table.pop("bound")
    table["in_sample"] = table.source.isin(step_time.in_sample_sources())
    judged = ~table.in_sample

    # Ranges
    table["factor"] = [factor_of(figure, table[judged]) for figure in figures]
    sizes = np.log(table.forecast_ms / table.measured_ms).abs() / table.factor
    sources = table.source
    halves = table.factor * step_time.widths_without(sizes[judged], sources[judged], sources)
    table["low_ms"] = table.forecast_ms * np.exp(-halves)
    table["high_ms"] = table.forecast_ms * np.exp(halves)

    # A plain roofline, whose one constant is the median of the other sources
    above = np.log(table.measured_ms / rooflines)[judged]
    medians = [above[table.source != source].median() for source in table.source]
    table["roofline_ms"] = rooflines * np.exp(medians)
    table["bound"] = bounds
    return table.round(3)


def factor_of(figure, rows):
    """Return how much wider a figure's range is than with figures of other sources alike.

    rows: those that ranges are set by, as in `step_time.range_factor`.
    """
    entry = gpus.datasheet_by_key(figure.key)
    rows = rows[rows.source != figure.source]
    factor = step_time.range_factor(entry, figure.precision, rows)
    return factor * UNSAID if figure.unsaid else factor
