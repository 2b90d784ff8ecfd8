"""Step times of a round, freed from what the machine did meanwhile.

Runs that took turns share the end of their run_id and met the same machine. So in a round the log
of a run's median step is its technique's level plus its group's. A technique that ran in several
groups, as the parent of many does, ties their levels together.
"""

import numpy as np
import pandas as pd

from Utils.base.turns import TOKEN

TIE = 1e-6  # weight of a group's effect where nothing ties it to the others


def step_ms(timed, quantile=0.5):
    """Return the step time in ms, a Series indexed by technique and round.

    Steps with another batch than requested are scaled to the requested one.
    timed: selected rows of timed steps. quantile: of a run's steps, which stands for it.
    """
    if timed.empty:
        return pd.Series(dtype=float)
    scaled = np.log(timed.step_ms * timed.requested_batch_size / timed.batch_size)
    timed = timed.assign(log=scaled, group=timed.run_id.str[-TOKEN:])
    runs = timed.groupby(["round", "group", "technique", "run_id"]).log.quantile(quantile)
    runs = runs.reset_index()
    runs.loc[~runs.duplicated(["round", "group"], keep=False), "group"] = ""  # took no turns
    levels = [_levels(r, of_round) for r, of_round in runs.groupby("round")]
    return np.exp(pd.concat(levels)).sort_index()


def _levels(r, runs):
    """Return the log level of each technique of round r, by least squares."""
    names, techniques = pd.factorize(runs.technique)
    groups, kinds = pd.factorize(runs.group)
    design = np.hstack([np.eye(len(techniques))[names], np.eye(len(kinds))[groups]])
    # Groups that no technique ties to others are taken as equally disturbed.
    ties = TIE * np.hstack([np.zeros((len(kinds), len(techniques))), np.eye(len(kinds))])
    values = np.concatenate([runs.log, np.zeros(len(kinds))])
    solved = np.linalg.lstsq(np.vstack([design, ties]), values)[0]
    index = pd.MultiIndex.from_product([techniques, [r]], names=["technique", "round"])
    return pd.Series(solved[: len(techniques)], index)
