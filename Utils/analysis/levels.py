"""Runs -> one additive fit, which gives all times and ratios of a study.

The log of a run's median step is the level of its script plus an effect of its group, the runs that
took turns and so met the same machine:

    group 1: A 4, B 5
    group 2: B 7, C 8

B ties the groups together. Their effects are -1 and +1, and the levels are A 5, B 6, C 7.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import optimize, sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import digamma, polygamma

from Utils.analysis.intervals import LOOK, LOOK_AT_PATCH, Ratio, of_each, scaled
from Utils.results import selection

DIRECTION_ROUNDS = 6  # from this number of rounds on, the direction of a round has an effect
FEWEST_SCRIPTS = 4  # with fewer, no variance is borrowed
ITERATIONS = 20  # updates of the weights, which follow from the variances
SINGULAR = 1e-11  # share of the largest eigenvalue that is one of 0: weights differ by up to 1e6
LEAST_FREEDOM = 0.05  # degrees of freedom that tell a script's variance


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels of scripts: logarithms of milliseconds a step, of the requested batch.

    logs: by script; the quotient of two times is their ratio.
    by_round: measured logarithms, a row a round, a column a script.
    tied: number of a set of scripts that groups tie together, by script.
    shares: what each run adds to each level, an array (runs, scripts).
    scripts: index of each run's script.
    variances, freedoms: a run's variance and its degrees of freedom, by script.
    families: sets of pairs of scripts; the intervals of the ratios of a set hold together.
    look: their confidence at one look.
    """

    logs: pd.Series
    by_round: pd.DataFrame
    tied: np.ndarray
    shares: np.ndarray
    scripts: np.ndarray
    variances: np.ndarray
    freedoms: np.ndarray
    families: tuple[set[frozenset[str]], ...]
    look: float

    def step_ms(self, script: str) -> float:
        """Return the time of a step, NaN without timings."""
        return math.exp(self.logs.get(script, math.nan))

    def ratio(self, reference: str, script: str) -> Ratio:
        """Return the speedup of a script over another, false if one has no timings.

        It has an interval if groups tie them together and each has two rounds.
        """
        if reference == script and script in self.logs:
            return Ratio(1.0, 1.0, 1.0)
        if not {reference, script} <= {*self.logs.index}:
            return Ratio()
        mean = self.logs[reference] - self.logs[script]
        if not self._are_tied((reference, script)):
            return Ratio(math.exp(mean))

        # The degrees of freedom are Satterthwaite's.
        positions = self.logs.index.get_indexer([reference, script])
        shares = self.shares[:, positions] @ [1, -1]
        squares = np.bincount(self.scripts, shares**2, len(self.logs))
        is_used = squares > 1e-12 * squares.max()
        parts = (squares * self.variances)[is_used]
        freedom = parts.sum() ** 2 / (parts**2 / self.freedoms[is_used]).sum()
        confidence = of_each(self.look, self._as_many(frozenset((reference, script))))
        return Ratio.by_t(mean, math.sqrt(parts.sum()), freedom, confidence)

    def unpaired(self, script: str) -> tuple[float, float, int]:
        """Return a level, its variance by that from round to round, and the degrees of freedom."""
        logs = self.by_round[script].dropna()
        return self.logs[script], logs.var() / len(logs), len(logs) - 1

    def is_alone(self, script: str) -> bool:
        """Return whether groups tie a script to no other."""
        return np.count_nonzero(self.tied == self.tied[self.logs.index.get_loc(script)]) == 1

    def _are_tied(self, scripts):
        positions = self.logs.index.get_indexer([*scripts])
        return len({*self.tied[positions]}) == 1 and self._rounds[positions].min() > 1

    @cached_property
    def _rounds(self):
        return self.by_round[self.logs.index].count().to_numpy()

    @cached_property
    def _counts(self):
        """The number of ratios with an interval, by family."""
        counts = []
        for family in self.families:
            with_times = [pair for pair in family if pair <= {*self.logs.index}]
            counts.append(sum(map(self._are_tied, with_times)))
        return counts

    def _as_many(self, pair):
        """Return the number of ratios of the first family that has a pair, else of the last."""
        for family, count in zip(self.families, self._counts, strict=True):
            if pair in family:
                return count
        return max(self._counts, default=1)


def levels_of(
    timed: pd.DataFrame,
    records: dict[str, dict],
    base: str,
    families: tuple[set[frozenset[str]], ...] = (),
) -> Levels:
    """Return the Levels of timed steps.

    records: by run_id. Runs of one suite that took no turns share a group in each round; without
        a suite each has its own, which ties it to none.
    base: the script that keeps its measured time.
    families: sets of pairs of scripts.
    """
    steps = timed.assign(log=np.log(scaled(timed).step_ms))
    keys = ["round", "technique", "run_id"]
    runs = steps.groupby(keys, observed=True).log.median().reset_index()

    round_of_run = "/" + runs["round"].astype(str)
    groups = selection.turn_groups(runs.run_id) + round_of_run
    took_no_turns = ~groups.duplicated(keep=False)
    suites = runs.run_id.map(lambda run_id: records.get(run_id, {}).get("suite_id") or run_id)
    runs["group"] = groups.mask(took_no_turns, suites + round_of_run)
    of_patch = any(record.get("side", {}).get("is_patch") for record in records.values())
    look = LOOK_AT_PATCH if of_patch else LOOK
    return fit(runs.rename(columns={"technique": "script"}), base, families, look)


def fit(
    runs: pd.DataFrame,
    base: str = "",
    families: tuple[set[frozenset[str]], ...] = (),
    look: float = LOOK,
) -> Levels:
    """Return the Levels of runs: a row each, with the columns script, group, round and log.

    Each script has a variance of its own, from the residuals of its runs, and runs are weighted by
    it. So weights and variances follow from each other.
    """
    script, names = pd.factorize(runs.script, sort=True)
    if runs.empty:
        nothing = np.empty(0)
        logs = pd.Series(dtype=float)
        return Levels(logs, pd.DataFrame(), *[nothing] * 5, families, look)
    group, _ = pd.factorize(runs.group)
    values = runs.log.to_numpy()
    design = _design(runs, script, len(names))

    variances = np.ones(len(names))
    for _ in range(ITERATIONS):
        # Least squares. Means over groups, taken off both sides, stand for the groups' effects.
        weights = 1 / variances[script]
        share_of_group = weights / np.bincount(group, weights)[group]
        means = sparse.csr_array((share_of_group, (group, np.arange(len(runs)))))
        own_design = design - (means @ design)[group]
        own_values = values - (means @ values)[group]
        normal = own_design.T @ (weights[:, None] * own_design)
        inverse = np.linalg.pinv(normal, rcond=SINGULAR, hermitian=True)
        shares = weights[:, None] * own_design @ inverse
        coefficients = shares.T @ own_values

        # A run adds one degree of freedom, less what it determines itself.
        leverages = (shares * own_design).sum(axis=1) + share_of_group
        squares = (own_values - own_design @ coefficients) ** 2
        before = variances
        variances, largest, freedoms = _variances(
            np.bincount(script, squares, len(names)),
            np.bincount(script, 1 - leverages, len(names)).clip(1e-9),
            before,
        )
        if np.allclose(variances, before, 1e-3):
            break

    # Groups that no script ties to others are taken as equally slow.
    positions = script, len(names) + group
    size = len(names) + group.max() + 1
    ties = sparse.coo_array((weights, positions), shape=(size, size))
    _, sets = connected_components(ties, directed=False)
    effects = means @ (values - design @ coefficients)
    of_sets = np.bincount(sets[len(names) :], effects) / np.bincount(sets[len(names) :])
    tied = sets[: len(names)]
    logs = pd.Series(coefficients[: len(names)] + of_sets[tied], names)

    # One factor gives the base its measured time.
    by_round = runs.pivot_table(index="round", columns="script", values="log", observed=True)
    if base in logs:
        logs += by_round[base].mean() - logs[base]
    shares = shares[:, : len(names)]
    return Levels(logs, by_round, tied, shares, script, largest, freedoms, families, look)


def _design(runs, script, count):
    """Return the equations of runs: a column a script, and one for its direction.

    Every other round runs in reverse order, so what changes within each round is added in one and
    subtracted in the next.
    """
    is_backward = runs["round"] % 2
    in_turns = runs.group.duplicated(keep=False) & ~runs.duplicated(["script", "round"])
    rounds = np.zeros((count, 2))
    np.add.at(rounds, (script[in_turns], is_backward[in_turns]), 1)
    has_effect = rounds.min(axis=1) >= DIRECTION_ROUNDS / 2

    levels = np.eye(count)[script]
    directions = levels * has_effect * (1 - 2 * is_backward.to_numpy()[:, None])
    return np.hstack([levels, directions])


def _variances(squares, freedoms, before):
    """Return variances for weights, variances for intervals, and degrees of freedom, by script.

    Smyth (2004): each variance is shrunk to the common one, by limma's equations (fitDist), and
    that of an interval is never below the script's own.

    squares: sums of the squared residuals.
    before: variances of a script without degrees of freedom.
    """
    is_known = freedoms > LEAST_FREEDOM
    if not is_known.any():
        return before, before, freedoms
    own = before.copy()
    own[is_known] = squares[is_known] / freedoms[is_known]
    least = max(1e-6 * own[is_known].max(), 1e-18)  # a variance of 0 has no logarithm, no weight
    own = np.fmax(own, least)

    shrunk = own
    if is_known.sum() >= FEWEST_SCRIPTS:
        common, of_common = _common(own[is_known], freedoms[is_known])
        weight = 1 / (1 + freedoms / of_common)
        shrunk = weight * common + (1 - weight) * own
        freedoms = np.fmin(freedoms + of_common, freedoms.sum())
    return shrunk, np.fmax(shrunk, own), freedoms


def _common(variances, freedoms):
    """Return the variance that scripts have in common, and its degrees of freedom.

    By the moments of the logarithms of their variances.
    """
    half = freedoms / 2
    values = np.log(variances) - digamma(half) + np.log(half)
    excess = values.var(ddof=1) - polygamma(1, half).mean()
    if excess <= 0:
        return variances.mean(), math.inf
    bounds = 1 / excess, 1 / excess + 1
    half_prior = optimize.brentq(lambda x: polygamma(1, x) - excess, *bounds)
    return np.exp(values.mean() + digamma(half_prior) - np.log(half_prior)), 2 * half_prior
