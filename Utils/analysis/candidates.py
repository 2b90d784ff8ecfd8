"""Measured sets of techniques: what each technique adds to one, and the shortest set that is as
good as the best."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from Utils.analysis import intervals, round_levels
from Utils.analysis.intervals import Ratio
from Utils.base.errors import UserError
from Utils.scripts import own_names, variants

AS_GOOD = (Ratio.above, Ratio.neither)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A script or variant: its set of techniques with the logs of its step time (ms, for as many
    tokens) and peak memory (MiB), indexed by round."""

    name: str
    techniques: frozenset
    ms: pd.Series
    mib: pd.Series

    @property
    def peak_mib(self):
        return float(np.exp(self.mib.median()))


@dataclass(frozen=True, eq=False)
class Effect:
    """The speedup of one technique added to a set, and the two Candidates."""

    ratio: Ratio
    without: Candidate
    with_it: Candidate


def measured(clean, sets):
    """Return a Candidate for each script and variant with clean rows, by name. sets: techniques by
    name, None for a script that is gone."""
    timed = clean[clean.phase == "timed"]
    ms = np.log(round_levels.step_ms(timed))
    mib = np.log(timed.groupby(["technique", "round"]).peak_memory_mib.first())
    names = [name for name, techniques in sets.items() if name in ms and techniques is not None]
    return {name: Candidate(name, sets[name], ms[name], mib[name]) for name in names}


def effects_of(name, measured):
    """Return the Effects of a technique, from all pairs of measured sets. measured: of the function
    of that name; of equal sets the first counts, scripts before variants."""
    by_set = {candidate.techniques: candidate for candidate in reversed(measured.values())}
    effects = []
    for techniques, larger in by_set.items():
        smaller = by_set.get(techniques - {name})
        if name in techniques and smaller is not None:
            effects.append(Effect(ratio(smaller.ms, larger.ms), smaller, larger))
    return [effect for effect in effects if effect.ratio]


def ratio(reference, logs):
    """Return the same as `intervals.speedup`, from logs."""
    differences = (reference - logs).dropna().round(9)  # equal is equal
    return Ratio.of_logs(intervals.drift_free(differences)) if len(differences) else Ratio()


def mean(logs):
    return np.inf if logs.isna().all() else logs.mean()


def shortest(candidates, metric, best):
    """Return the candidate with the fewest techniques that is not significantly worse than the best
    by the metric (ms or mib) and whose script can be made; of several the best by the metric."""
    target = getattr(best, metric)
    as_good = [c for c in candidates if ratio(target, getattr(c, metric)).verdict in AS_GOOD]
    as_good.sort(key=lambda c: (len(c.techniques), mean(getattr(c, metric) - target)))
    return next((candidate for candidate in as_good if script_of(candidate)), best)


def script_of(candidate):
    """Return the candidate's script or variant, or None if its merges conflict. A user's own script
    needs none: it is the candidate itself."""
    if own_names.split(candidate.name):
        return candidate
    try:
        return variants.find(candidate.name)
    except UserError:
        return None
