"""Step times of a round, freed from what the machine did meanwhile.

Runs that took turns share the end of their run_id and met the same machine, turn by turn. So in a
group of such runs the log of a turn's step time is the script's level plus the turn's effect; and
of a round, a run's log level is the technique's plus its group's. A technique that ran in several
groups, as the parent of many does, ties their levels together.
"""

import numpy as np
import pandas as pd

from Utils.base.turns import TOKEN

TIE = 1e-6  # weight of a group's effect where nothing ties it to the others


def step_ms(timed):
    """Return the step time in ms, a Series indexed by technique and round.

    Steps with another batch than requested are scaled to the requested one.
    timed: selected rows of timed steps.
    """
    if timed.empty:
        return pd.Series(dtype=float)
    levels = [_levels(r, runs) for r, runs in _runs(timed).groupby("round")]
    return np.exp(pd.concat(levels)).sort_index()


def _runs(timed):
    """Return one line per run: technique, round, group and log level."""
    timed = timed.assign(log=np.log(timed.step_ms), group=timed.run_id.str[-TOKEN:])
    timed["log"] += np.log(timed.requested_batch_size / timed.batch_size)
    # Consecutive timed steps are one turn.
    timed["turn"] = timed.groupby("run_id").step.diff().ne(1).groupby(timed.run_id).cumsum()
    turns = timed.groupby(["round", "group", "technique", "run_id", "turn"]).log.median()
    medians = timed.groupby("run_id").log.median()
    lines = []
    for (r, group), logs in turns.groupby(["round", "group"]):
        table = logs.unstack("turn").droplevel(["round", "group"])  # one line per run
        common = table.dropna(axis="columns")
        if len(common) > 1 and common.size:
            effect = common.sub(common.median(axis="columns"), axis="index").mean()
            level = _middle((common - effect).to_numpy())
        else:
            level, group = medians[table.index.get_level_values("run_id")].to_numpy(), ""
        names = table.index.get_level_values("technique")
        lines.append(pd.DataFrame({"round": r, "group": group, "technique": names, "log": level}))
    return pd.concat(lines)


def _middle(values):
    """Return the mean of each row without a quarter of its values at either end: bursts of other
    load do not count."""
    cut = (values.shape[1] + 1) // 4
    return np.sort(values, axis=1)[:, cut : values.shape[1] - cut].mean(axis=1)


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
