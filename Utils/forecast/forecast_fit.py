"""The constants of `steptime` fitted to published figures, and the error of what that forecasts.

The error is that of figures of a source that took no part in the fit: each source is left out in
turn, and the constants are fitted to the others.
"""

from dataclasses import replace

import numpy as np

from Utils.device import datasheets
from Utils.forecast import step_time

TRACED_LAYERS = 1, 2  # of the models of others: each layer more costs what the second does
PRIME = 97  # sequences, of which any batch is worked out
ROUNDS = 3
ENOUGH = 5e-3  # change of a constant, as a logarithm, after which it is found
STEP = 0.02  # of a constant, for the slope of what depends on it
SIGMA = 0.085  # deviation of a figure, as a logarithm: what sources leave unsaid
SHARED = 0.085  # deviation that all figures of a source share: its device's clocks, its code
LARGEST = 0.3  # deviation, as a logarithm, beyond which a figure pulls no harder


class Cases:
    """Figures with the kernels of their steps, of which `works` gives the Work of a traced Step."""

    def __init__(self, figures, works):
        self.figures = figures
        self._kernels = {
            (step, n): works[replace(step, batch=PRIME, layers=n)].at(step.batch).kernels()
            for step in {figure.step for figure in figures}
            for n in TRACED_LAYERS
        }
        self.measured = np.log([figure.seconds for figure in figures])

    def step_time(self, figure, constants):
        """Return the StepTime of a figure's step."""
        few, more = (self._of_layers(figure, layers, constants) for layers in TRACED_LAYERS)
        return few.plus(more.plus(few, -1), figure.step.layers - TRACED_LAYERS[0])

    def _of_layers(self, figure, layers, constants):
        entry, (kernels, order) = datasheets.find(figure.key), self._kernels[figure.step, layers]
        found = step_time.step_time(kernels, order, entry, constants)
        if figure.step.evaluations:
            forward = order[kernels.phase[order] == 0]
            evaluation = step_time.step_time(kernels, forward, entry, constants)
            found = found.plus(evaluation, figure.step.evaluations)
        return found

    def forecasts(self, constants):
        """Return the logarithms of the forecast seconds of every figure."""
        return np.log([self.step_time(figure, constants).seconds for figure in self.figures])

    def rooflines(self):
        """Return the same for a plain roofline, without its one constant."""
        return np.log([self._roofline(figure) for figure in self.figures])

    def _roofline(self, figure):
        entry, step = datasheets.find(figure.key), figure.step
        few, more = (step_time.roofline(*self._kernels[step, n], entry) for n in TRACED_LAYERS)
        return few + (step.layers - TRACED_LAYERS[0]) * (more - few)


def precision(sources, weights):
    """Return the inverse covariance of deviations: independent ones, and one that each source's
    figures share. So figures of one source say more on ratios than on levels. weights: of the
    figures, 0 to 1."""
    own = np.asarray(weights) / SIGMA**2
    matrix = np.diag(own)
    for source in set(sources):  # by Sherman and Morrison's formula
        part = own * (np.asarray(sources) == source)
        matrix -= np.outer(part, part) / (SHARED**-2 + part.sum())
    return matrix


def fitted(cases, left_out):
    """Return (constants fitted to all figures, a list fitted without each source of left_out).

    The effect of a source is computed from the slopes at the first."""
    known = step_time.constants()
    names = [name for name, row in known.items() if "spread" in row]
    values = {name: row["prior"] for name, row in known.items()}
    for _ in range(ROUNDS):
        line = Line(cases, values, names)
        best = line.solved(np.ones(len(cases.figures), dtype=bool))
        values |= dict(zip(names, np.exp(best).tolist(), strict=True))
        if np.abs(best - line.at).max() < ENOUGH:
            break
    sources = np.array([figure.source for figure in cases.figures])
    others = [line.solved(sources != source) for source in left_out]
    return values, [values | dict(zip(names, np.exp(o).tolist(), strict=True)) for o in others]


class Line:
    """The forecasts as a linear function of the constants' logarithms around given values."""

    def __init__(self, cases, values, names):
        known = step_time.constants()
        self.cases, self.at = cases, np.log([values[name] for name in names])
        self.here = cases.forecasts(values)
        moved = [cases.forecasts(values | {n: values[n] * np.exp(STEP)}) for n in names]
        self.matrix = np.stack([(there - self.here) / STEP for there in moved], axis=1)
        self.spreads = np.array([known[name]["spread"] for name in names])
        self.priors = np.log([known[name]["prior"] for name in names])

    def solved(self, used):
        """Return the logarithms of the constants: least squares with priors over the used figures.
        Deviations beyond LARGEST count as LARGEST."""
        matrix, at = self.matrix, self.at.copy()
        sources = [figure.source for figure in self.cases.figures]
        for _ in range(20):  # as the weights follow the deviations
            off = self.cases.measured - self.here - matrix @ (at - self.at)
            weights = used * np.minimum(1, LARGEST / np.maximum(np.abs(off), 1e-9))
            weighted = matrix.T @ precision(sources, weights)
            left = weighted @ matrix + np.diag(self.spreads**-2.0)
            right = weighted @ off + (self.priors - at) / self.spreads**2
            at = at + 0.7 * np.linalg.solve(left, right)
        return at
