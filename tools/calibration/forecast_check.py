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
UNSAID = 1.25  # a range where a source does not say the variant of its device or its power limit


def works(figures):
    """Return the Work of each figure's step, traced at few layers and a prime batch."""
    steps = {}
    for figure in figures:
        for layers in forecast_fit.TRACED_LAYERS:
            steps[replace(figure.step, batch=forecast_fit.PRIME, layers=layers)] = None
    import_compiler()
    answers = in_processes(other_models.work, [(step, GPU) for step in steps])
    return dict(zip(steps, answers, strict=True))


def check(figures, cases, constants_by_source):
    """Return the rows of docs/forecast_check.csv, a DataFrame.

    Each figure is beside a forecast with constants that were fitted without its source.
    """
    sources = np.array([figure.source for figure in figures])
    steps = [cases.step_time(figure, constants_by_source[figure.source]) for figure in figures]
    deviations = np.log([step.seconds for step in steps]) - cases.measured
    factors = np.array([factor_of(figure, figures) for figure in figures])
    rooflines = cases.rooflines()
    rows = []
    for index, (figure, step) in enumerate(zip(figures, steps, strict=True)):
        elsewhere = sources != figure.source
        half = factors[index] * step_time.width(deviations[elsewhere], factors[elsewhere])
        above_roofline = np.median((cases.measured - rooflines)[elsewhere])
        rows.append(
            {
                "source": figure.source,
                "key": figure.key,
                "model": figure.model,
                "technique": figure.technique,
                "batch": figure.step.batch,
                "tokens": figure.step.tokens,
                "precision": precision_of(figure),
                "measured_ms": 1e3 * figure.seconds,
                "forecast_ms": 1e3 * step.seconds,
                "low_ms": 1e3 * step.seconds * np.exp(-half),
                "high_ms": 1e3 * step.seconds * np.exp(half),
                "roofline_ms": 1e3 * np.exp(rooflines[index] + above_roofline),
                "factor": factors[index],
                "bound": max(step.seconds_by_activity, key=step.seconds_by_activity.get),
            }
        )
    return pd.DataFrame(rows).round(3)


def precision_of(figure):
    return figure.step.precision.removeprefix("pure_")


def factor_of(figure, figures):
    """Return how much wider a figure's range is than with figures of other sources alike."""
    others = [other for other in figures if other.source != figure.source]
    covered = {(other.key, precision_of(other)) for other in others}
    factor = step_time.range_factor(
        gpus.datasheet_by_key(figure.key), precision_of(figure), covered
    )
    return factor * UNSAID if figure.unsaid else factor
