"""Sets of techniques, measured and forecast, and the shortest that is as good as the best."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from Utils.analysis import intervals
from Utils.base import variants
from Utils.base.errors import UserError

AS_GOOD = ("faster", "no detectable difference")


@dataclass(frozen=True, eq=False)
class Candidate:
    """A set of techniques with logs of what it takes, indexed by round: of milliseconds a step of
    as many tokens, and of MiB at the peak. A forecast has no name, and rests on measured ones."""

    techniques: frozenset
    ms: pd.Series
    mib: pd.Series
    name: str | None = None
    rests_on: tuple = ()


def measured(clean, sets):
    """A Candidate for each script and variant with clean rows, by name. sets: its techniques, or
    None where it is not here any more, by name."""
    timed = clean[clean.phase == "timed"]
    ms = np.log(intervals.round_medians(timed))
    mib = np.log(timed.groupby(["technique", "round"]).peak_memory_mib.first())
    names = [name for name, techniques in sets.items() if name in ms and techniques is not None]
    return {name: Candidate(sets[name], ms[name], mib[name], name) for name in names}


def effects(measured):
    """{(set, technique): ratio} of what a technique changes where a set of others is there, for all
    pairs that were measured, with the two Candidates."""
    sets = by_set(measured)
    return {
        (others, name): ratio(sets[others].ms, with_it.ms)
        | {"without": sets[others], "with": with_it}
        for techniques, with_it in sets.items()
        for name in techniques
        if (others := techniques - {name}) in sets
    }


def by_set(candidates):
    """Of those that are the same set by other names, the first, scripts before variants."""
    return {c.techniques: c for c in reversed(candidates.values())}


def ratio(reference, logs):
    """As `summary.speedup`, of logs; {} without a common round."""
    differences = (reference - logs).dropna().round(9)  # equal is equal
    return intervals.as_ratio(*intervals.interval(differences)) if len(differences) else {}


def mean(logs):
    return np.inf if logs.isna().all() else logs.mean()


def levels(logs):
    """Each column's mean as if all had run in every round: least squares on column and round."""
    long = logs.rename_axis("round").reset_index().melt("round").dropna()
    names, columns = pd.factorize(long.variable)
    rounds = pd.factorize(long["round"])[0]
    design = np.hstack([np.eye(names.max() + 1)[names], np.eye(rounds.max() + 1)[rounds]])
    return pd.Series(np.linalg.lstsq(design, long.value.to_numpy())[0][: len(columns)], columns)


def forecasts(usable, effects):
    """Sets without rows, made by dropping several techniques of a measured one which it can spare,
    one at a time, in time or in memory: a list of Candidates.

    Logs add up, within each round: the noise of the whole itself is in each of the ratios, so their
    variances would not. Not forecast is what the rows speak against: where some of the dropped were
    dropped together and it got slower than so forecast, or one may stand in for another.
    """
    sets, found = by_set(usable), {}
    for techniques, whole in sorted(sets.items(), key=lambda item: len(item[0])):
        without = {
            name: sets[techniques - {name}]
            for name in sorted(techniques)
            if techniques - {name} in sets
        }
        spare = [
            name
            for name, c in without.items()
            if ratio(whole.ms, c.ms).get("verdict") in AS_GOOD
            or ratio(whole.mib, c.mib).get("verdict") in AS_GOOD
        ]
        contradicted = []
        for n in range(2, len(spare) + 1):
            for dropped in map(frozenset, combinations(spare, n)):
                rest, singly = techniques - dropped, [without[name] for name in sorted(dropped)]
                ms = whole.ms + sum(c.ms - whole.ms for c in singly)
                mib = whole.mib + sum(c.mib - whole.mib for c in singly)
                if rest in sets:
                    if ratio(ms, sets[rest].ms).get("verdict") == "slower":
                        contradicted.append(dropped)
                elif (
                    rest not in found
                    and not any(part <= dropped for part in contradicted)
                    and not any(_may_replace(a, b, effects) for a in dropped for b in dropped - {a})
                ):
                    rests_on = (whole.name, *(c.name for c in singly))
                    found[rest] = Candidate(rest, ms, mib, None, rests_on)
    return list(found.values())


def _may_replace(other, name, effects):
    """Whether it may be for `other` that a whole can spare `name`: where `name` pays, `other` is
    never there, nor was it tried there in vain."""
    pays = [
        others
        for (others, added), ratio in effects.items()
        if added == name and ratio.get("verdict") == "faster"
    ]
    cleared = (
        other in others
        or effects.get((others, other), {}).get("verdict") in ("slower", "no detectable difference")
        for others in pays
    )
    return bool(pays) and not any(cleared)


def shortest(candidates, metric, best):
    """The candidate with the fewest techniques that is not told worse than the best by that metric
    (ms or mib); measured before forecast, then the best by the metric; which can be made."""
    target = getattr(best, metric)
    fit = [c for c in candidates if ratio(target, getattr(c, metric)).get("verdict") in AS_GOOD]
    fit.sort(key=lambda c: (len(c.techniques), not c.name, mean(getattr(c, metric) - target)))
    return next((c for c in fit if made(c)), best)


def made(candidate):
    """Its script or variant, or None where the merges contradict each other."""
    try:
        if candidate.name:
            return variants.find(candidate.name)
        return variants.made_of(candidate.techniques)
    except UserError:
        return None
