"""Step times of a round, freed from what the machine did meanwhile.

Runs that took turns share the group in their run_id and met the same machine. So in a round the log
of a run's median step is its technique's level plus its group's. A technique that ran in several
groups, as the parent of many does, ties their levels together.
"""

import numpy as np
import pandas as pd

from Utils.results import selection

TIE = 1e-6  # weight of a group's effect where nothing ties it to the others


def scaled(rows):
    """Return the rows with step_ms as of a step on the requested batch."""
    return rows.assign(step_ms=rows.step_ms * rows.requested_batch_size / rows.batch_size)


def step_ms(timed):
    """Return the step time in ms for the requested batch, a Series by technique and round.

    timed: selected rows of timed steps.
    """
    if timed.empty:
        return pd.Series(dtype=float)
    log = np.log(scaled(timed).step_ms)
    group = selection.turn_groups(timed.run_id).astype(object)
    keys = ["round", "group", "technique", "run_id"]
    runs = timed.assign(log=log, group=group).groupby(keys, observed=True).log.median()
    runs = runs.reset_index()
    runs.loc[~runs.duplicated(["round", "group"], keep=False), "group"] = ""  # took no turns
    by_round = {r: levels(run.log, run.technique, run.group) for r, run in runs.groupby("round")}
    return np.exp(pd.concat(by_round, names=["round", "technique"])).swaplevel().sort_index()


def levels(values, names, groups):
    """Return the level of each name, a Series, by least squares: a value is the level of its name
    plus that of its group."""
    of_names = pd.get_dummies(names, dtype=float)[names.unique()]
    of_groups = pd.get_dummies(groups, dtype=float)[groups.unique()]
    count = of_groups.shape[1]
    # Groups that no name ties to others are taken as equally disturbed.
    ties = np.hstack([np.zeros((count, of_names.shape[1])), TIE * np.eye(count)])
    equations = np.vstack([np.hstack([of_names, of_groups]), ties])
    solution = np.linalg.lstsq(equations, np.concatenate([values, np.zeros(count)]))[0]
    return pd.Series(solution[:-count], of_names.columns)


def by_step(rows, most):
    """Return median, min and max of `scaled` step_ms over the rounds, and how many steps a row
    stands for.

    The frame is indexed by technique and step, of which 0 is the first timed one. most: of its
    steps; where there are more, each `size` consecutive ones are merged.
    """
    ok = scaled(rows[rows.status == "ok"])
    first_timed = ok.step.where(ok.phase == "timed").groupby(ok.run_id).transform("min")
    step = (ok.step - first_timed).rename("step")
    size = max(1, int(np.ceil((step.max() - step.min() + 1) / most)))
    keys = ["technique", step // size * size]
    return ok.groupby(keys, observed=True).step_ms.agg(["median", "min", "max"]), size
