"""The forecast compared with published figures, each source left out of the fit in turn."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tests.calibration import forecast_fit, other_models
from Utils.base.units import GIB
from Utils.device import datasheets
from Utils.device.cuda import ImaginedGPU
from Utils.forecast import time_range
from Utils.forecast.recording_processes import import_compiler, in_processes

GPU = ImaginedGPU("published", 80 * GIB)


def works(figures):
    """Return the Work of each figure's step, traced at few layers and a prime batch."""
    steps = dict.fromkeys(
        replace(figure.step, batch=forecast_fit.PRIME, layers=layers)
        for figure in figures
        for layers in forecast_fit.TRACED_LAYERS
    )
    import_compiler()
    answers = in_processes(other_models.work, [(step, GPU) for step in steps])
    return dict(zip(steps, answers, strict=True))


@dataclass(frozen=True)
class LeftOut:
    """The forecasts of figures by constants that were fitted without their sources."""

    steps: list  # StepTimes
    factors: np.ndarray  # how much wider each range is than with figures alike
    roofline_s: np.ndarray


def forecast_without_source(figures, cases, constants_by_source):
    """Return the LeftOut of all figures."""
    sources = np.array([figure.source for figure in figures])
    chips = [time_range.chip(datasheets.find(figure.key)) for figure in figures]
    precisions = [precision_of(figure) for figure in figures]
    rooflines = cases.rooflines()
    steps = []
    factors = np.ones(len(figures))
    for index, figure in enumerate(figures):
        others = np.flatnonzero(sources != figure.source)
        covered = {(chips[other], precisions[other]) for other in others}
        entry = datasheets.find(figure.key)
        factors[index] = time_range.kind_factor(entry, precisions[index], covered)
        if figure.unsaid:
            factors[index] *= time_range.UNSAID
        steps.append(cases.step_time(figure, constants_by_source[figure.source]))
        rooflines[index] += np.median((cases.measured - cases.rooflines())[others])
    return LeftOut(steps, factors, np.exp(rooflines))


def precision_of(figure):
    return figure.step.precision.removeprefix("pure_")


def check(figures, cases, constants_by_source):
    """Return the rows of docs/forecast_check.csv, a DataFrame."""
    forecasts = forecast_without_source(figures, cases, constants_by_source)
    sources = np.array([figure.source for figure in figures])
    seconds = np.array([step.seconds for step in forecasts.steps])
    deviations = np.log(seconds) - cases.measured
    rows = []
    for index, (figure, step) in enumerate(zip(figures, forecasts.steps, strict=True)):
        others = sources != figure.source
        factor = forecasts.factors[index]
        half = factor * time_range.width(deviations[others], forecasts.factors[others])
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
                "roofline_ms": 1e3 * forecasts.roofline_s[index],
                "factor": factor,
                "bound": step.bound,
            }
        )
    return pd.DataFrame(rows).round(3)
