"""Steps -> levels of scripts in rounds, from which all times and ratios of a study are.

A run's level is the log of its median step. Runs that took turns met the same machine: if that
makes ratios steadier, a level is its technique's plus its group's, and a technique that ran in
several groups ties them together.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import sparse

from Utils.analysis.intervals import (
    CommonVariance,
    MeanOfRounds,
    Ratio,
    common_variance,
    ratio_of,
    scaled,
)
from Utils.results import selection

TIE = 1e-4  # weight of a group's effect if nothing ties it to the others
WORTH_FITTING = 0.5  # times the variance: the most that the model of groups may leave


@dataclass(frozen=True)
class Levels:
    """Levels of the scripts of a study, from which all of its times and ratios are.

    logs: logarithms of milliseconds a step of the requested batch, a row a round, a column a
        script.
    common: the variance that ratios borrow.
    are_fitted: by the model of groups. Then the base's time is still its measured one.
    """

    logs: pd.DataFrame
    common: CommonVariance
    are_fitted: bool

    def ratio(self, reference: str, script: str) -> Ratio:
        """Return the speedup of a script over another, false if one has no timings."""
        if reference not in self.logs or script not in self.logs:
            return Ratio()
        if reference == script:
            return Ratio(1.0, 1.0, 1.0, 1.0)
        return ratio_of(self.logs[reference] - self.logs[script], self.common)

    def step_ms(self, script: str) -> float:
        """Return the mean over rounds; the quotient of two is their ratio. NaN without timings."""
        return math.exp(_mean(self.logs[script])) if script in self.logs else math.nan


def levels_of(timed: pd.DataFrame, parents: dict[str, str], base: str) -> Levels:
    """Return the Levels of timed steps.

    A level is the median of the run's steps, or what the model of groups makes of it, if the model
    halves the variance of the ratios over the parent. One round cannot tell: the model is used.

    parents: of each script.
    base: the script whose time the model leaves as it was measured.
    """
    # One value a run, with its group of runs in turns. Runs that took no turns share a group.
    steps = timed.assign(log=np.log(scaled(timed).step_ms))
    steps["group"] = selection.turn_groups(timed.run_id).astype(object)
    keys = ["round", "group", "technique", "run_id"]
    runs = steps.groupby(keys, observed=True).log.median().reset_index()
    took_no_turns = ~runs.duplicated(["round", "group"], keep=False)
    runs.loc[took_no_turns, "group"] = ""

    # The measured levels.
    by_script = runs.groupby(["round", "technique"], observed=True)
    runs["script"] = by_script.ngroup()
    means = by_script.log.mean()
    measured = means.unstack()
    pairs = [
        (parent, name)
        for name, parent in parents.items()
        if len(measured.reindex(columns=[parent, name]).dropna())
    ]

    # Those of the model, if scripts tie groups together.
    if runs.script.duplicated().any():
        groups = runs.groupby(["round", "group"]).ngroup()
        fitted = pd.Series(fit_levels(runs.log, runs.script, groups), means.index).unstack()
        if not _spread(fitted, pairs) > WORTH_FITTING * _spread(measured, pairs):
            kept = base if base in measured else measured.columns[0]
            fitted += _mean(measured[kept]) - _mean(fitted[kept])
            return Levels(fitted, common_variance(fitted, pairs), True)
    return Levels(measured, common_variance(measured, pairs), False)


def _mean(logs):
    """Return the mean of levels by round, of the rounds that have one."""
    return MeanOfRounds.of(logs.dropna()).value


def _spread(logs, pairs):
    """Return the geometric mean variance of the log ratios of pairs, NaN without two rounds."""
    variances = pd.Series([(logs[a] - logs[b]).var() for a, b in pairs], dtype=float)
    return np.exp(np.log(variances + TIE**2).mean())


def fit_levels(values: pd.Series, names: pd.Series, groups: pd.Series) -> np.ndarray:
    """Return the level of each name by least squares. names, groups: numbers from 0 on.

    A value is its name's level plus its group's effect. For example, A and B took turns, then B and
    C, in a group that was slower:

        group 1: A 4, B 5
        group 2: B 7, C 8

    B ties the groups together. Their effects are -1 and +1, and the levels are A 5, B 6, C 7.
    """
    count = names.max() + 1
    positions = np.tile(np.arange(len(values)), 2), np.append(names, count + groups)
    equations = sparse.csr_array((np.ones(2 * len(values)), positions))

    # Weak equations, "effect = 0": groups that no name ties together are taken as equally slow.
    ties = sparse.diags_array(np.repeat([0.0, TIE**2], [count, groups.max() + 1]))
    normal = (equations.T @ equations + ties).tocsc()
    return sparse.linalg.spsolve(normal, equations.T @ values.to_numpy())[:count]
