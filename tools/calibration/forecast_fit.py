"""Fit of the constants of `tools.forecast.step_time` to published figures.

A figure is compared with a forecast whose constants were fitted without its source.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from tools.forecast import gpus, step_time
from tools.forecast.kernel_work import TYPES, kernels_at

TRACED_LAYERS = 1, 2  # further layers cost as much as the second
PRIME = 97  # sequences in a trace, from which the kernels of any batch follow
ROUNDS = 3
ENOUGH = 5e-3  # change of a constant, as a logarithm, after which it is final
STEP = 0.02  # change of a constant, as a logarithm, for the slopes of forecasts
SIGMA = 0.085  # deviation of a figure, as a logarithm: what sources leave unsaid
SHARED = 0.085  # deviation that figures of a source on a device share: its clocks, their code
LARGEST = 0.3  # deviation, as a logarithm, beyond which a figure pulls no harder: Huber


class Cases:
    """Figures with the kernels of their steps.

    works: the StepOperations of each traced Step.
    """

    def __init__(self, figures, works):
        self.figures = figures
        self.works = works

    def _passes(self, step, layers):
        """Yield the passes of a Step with a traced number of layers: StepKernels, and how often.

        The first is the step of one batch. Evaluations repeat its forward pass, further batches its
        forward and backward pass.
        """
        kernels = kernels_at(self.works[replace(step, batch=PRIME, layers=layers)], step.batch)
        yield kernels, 1

        # Phase 0 is forward, 1 backward
        phase = kernels.kernels.phase[kernels.order]
        for last_phase, times in enumerate((step.evaluations, step.microbatches - 1)):
            if times:
                yield replace(kernels, order=kernels.order[phase <= last_phase]), times

    def _total(self, figure, seconds):
        """Return the seconds of a figure's step.

        seconds: function of StepKernels and a Datasheet, a number or a Series.
        """
        entry = gpus.datasheet_by_key(figure.key)
        totals = []
        for layers in TRACED_LAYERS:
            passes = self._passes(figure.step, layers)
            totals.append(sum(times * seconds(kernels, entry) for kernels, times in passes))

        few, more = totals
        return few + (figure.step.layers - TRACED_LAYERS[0]) * (more - few)

    def step_time(self, figure, constants):
        """Return the `seconds` of a figure's step and those by activity, a Series."""

        def seconds(kernels, entry):
            time = step_time.step_time(kernels, entry, constants)
            return pd.Series({"seconds": time.seconds} | time.seconds_by_activity)

        return self._total(figure, seconds)

    def forecasts(self, constants):
        """Return the logarithms of the forecast seconds of every figure."""
        return np.log([self.step_time(figure, constants).seconds for figure in self.figures])

    def roofline(self, figure):
        """Return the seconds of a figure's step by a plain roofline."""
        return self._total(figure, roofline)


def roofline(step, entry):
    """Return seconds of a step by a plain roofline: each kernel at its type's or memory's peak."""
    peaks = np.array([*(entry.peak(name) or entry.float32 for name in TYPES[:-1]), entry.float32])
    flop = step.kernels.flop / (1e12 * peaks[step.kernels.type])
    return np.maximum(flop, step.kernels.traffic / (1e9 * entry.bandwidth))[step.order].sum()


def fitted(cases):
    """Return the constants fitted to all figures, and by source those fitted without it.

    Without a source, forecasts are taken as linear around the constants fitted to all.
    """
    # To all figures
    rows = {name: row for name, row in step_time.constant_rows().items() if "prior" in row}
    names = list(rows)
    values = step_time.constants() | {name: row["prior"] for name, row in rows.items()}
    sources = np.array([figure.source for figure in cases.figures])
    for _ in range(ROUNDS):
        line = line_around(cases, values, rows)
        best = solved(line, np.ones(len(sources), dtype=bool))
        values = values | as_constants(names, best)
        if np.abs(best - line.at).max() < ENOUGH:
            break

    # Without each source
    without = {
        source: values | as_constants(names, solved(line, sources != source))
        for source in dict.fromkeys(sources.tolist())
    }
    return values, without


def as_constants(names, logarithms):
    return dict(zip(names, np.exp(logarithms).tolist(), strict=True))


@dataclass(frozen=True)
class Line:
    """The forecasts as a linear function of the constants' logarithms around `at`."""

    groups: list  # the group of each figure: its source and device
    at: np.ndarray  # logarithms of the constants
    deviations: np.ndarray  # figures less forecasts there, as logarithms
    matrix: np.ndarray  # change of each forecast with each constant
    spreads: np.ndarray  # deviations of the constants from their priors
    priors: np.ndarray  # logarithms


def line_around(cases, values, rows):
    """Return the Line around these values of the constants. rows: those that are fitted."""
    here = cases.forecasts(values)
    moved = [cases.forecasts(values | {n: values[n] * np.exp(STEP)}) for n in rows]
    return Line(
        groups=[f"{figure.source}, {figure.key}" for figure in cases.figures],
        at=np.log([values[name] for name in rows]),
        deviations=np.log([figure.seconds for figure in cases.figures]) - here,
        matrix=(np.stack(moved, axis=1) - here[:, None]) / STEP,
        spreads=np.array([row["spread"] for row in rows.values()]),
        priors=np.log([row["prior"] for row in rows.values()]),
    )


def solved(line, used):
    """Return the logarithms of the constants: least squares with priors over the used figures.

    A figure deviates by itself and by a deviation that all figures of its group share. So the
    figures of a group say more on ratios than on levels.
    """
    # Unknowns: logarithms of the constants, then a shared deviation for each group
    count = len(line.at)
    in_group = np.equal.outer(line.groups, list(dict.fromkeys(line.groups))).astype(float)

    def residuals(unknowns):
        at, shared = unknowns[:count], unknowns[count:]
        off = line.deviations - line.matrix @ (at - line.at) - in_group @ shared
        from_priors = (at - line.priors) / line.spreads
        return np.concatenate([used * off / SIGMA, shared / SHARED, from_priors])

    # From the present constants, without shared deviations
    start = np.concatenate([line.at, np.zeros(in_group.shape[1])])
    answer = least_squares(
        residuals,
        start,
        loss="huber",
        f_scale=LARGEST / SIGMA,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    return answer.x[:count]
