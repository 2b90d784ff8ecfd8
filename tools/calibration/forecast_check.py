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
    steps = [cases.step_time(figure, constants_by_source[figure.source]) for figure in figures]
    table = pd.DataFrame(
        {
            "source": [figure.source for figure in figures],
            "key": [figure.key for figure in figures],
            "model": [figure.model for figure in figures],
            "technique": [figure.technique for figure in figures],
            "batch": [figure.step.batch for figure in figures],
            "tokens": [figure.step.tokens for figure in figures],
            "precision": [figure.precision for figure in figures],
            "measured_ms": [1e3 * figure.seconds for figure in figures],
            "forecast_ms": [1e3 * step.seconds for step in steps],
        }
    )
    table["in_sample"] = table.source.isin(step_time.in_sample_sources())
    judged = ~table.in_sample

    # Ranges
    table["factor"] = [factor_of(figure, table[judged]) for figure in figures]
    sizes = np.log(table.forecast_ms / table.measured_ms).abs() / table.factor
    halves = table.factor * step_time.widths_without(
        sizes[judged].to_numpy(), table.source[judged].to_numpy(), table.source
    )
    table["low_ms"] = table.forecast_ms * np.exp(-halves)
    table["high_ms"] = table.forecast_ms * np.exp(halves)

    # A plain roofline, whose one constant is the median of the other sources
    rooflines = pd.Series([1e3 * cases.roofline(figure) for figure in figures])
    above = np.log(table.measured_ms / rooflines)[judged]
    medians = [above[table.source != source].median() for source in table.source]
    table["roofline_ms"] = rooflines * np.exp(medians)
    table["bound"] = [step.largest_part[0] for step in steps]
    return table.round(3)


def factor_of(figure, rows):
    """Return how much wider a figure's range is than with figures of other sources alike.

    rows: those that ranges are set by, as in `step_time.range_factor`.
    """
    entry = gpus.datasheet_by_key(figure.key)
    rows = rows[rows.source != figure.source]
    factor = step_time.range_factor(entry, figure.precision, rows)
    return factor * UNSAID if figure.unsaid else factor
