"""Sets of techniques, measured and forecast; the shortest that is as good as the best."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from Utils.analysis import intervals, round_levels
from Utils.analysis.intervals import Ratio
from Utils.base.errors import UserError
from Utils.scripts import bases, variants

AS_GOOD = ("faster", "no detectable difference")


@dataclass(frozen=True, eq=False)
class Candidate:
    """A set of techniques with the logs of its step time (ms, for as many tokens) and peak memory
    (MiB), indexed by round. A forecast has no name, and rests on measured Candidates."""

    techniques: frozenset
    ms: pd.Series
    mib: pd.Series
    name: str | None = None
    rests_on: tuple = ()


@dataclass(frozen=True, eq=False)
class Effect:
    """The speedup of one technique added to a set, and the two measured Candidates."""

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
    return {name: Candidate(sets[name], ms[name], mib[name], name) for name in names}


def effects(measured):
    """Return the Effect of each technique added to a set: {(set, technique): Effect}."""
    sets = by_set(measured)
    return {
        (rest, name): Effect(ratio(sets[rest].ms, with_it.ms), sets[rest], with_it)
        for techniques, with_it in sets.items()
        for name in techniques
        if (rest := techniques - {name}) in sets
    }


def by_set(candidates):
    """Return the candidates by set; of equal sets the first, scripts before variants."""
    return {c.techniques: c for c in reversed(candidates.values())}


def ratio(reference, logs):
    """Return the same as `intervals.speedup`, from logs."""
    differences = (reference - logs).dropna().round(9)  # equal is equal
    return Ratio.of_logs(intervals.drift_free(differences)) if len(differences) else Ratio()


def mean(logs):
    return np.inf if logs.isna().all() else logs.mean()


def forecasts(usable, effects):
    """Return Candidates for sets without rows: a measured set less several techniques, each of
    which it can spare alone, in time or in memory.

    Logs are added within each round, since all ratios share the noise of the whole. A set is not
    forecast where rows contradict it: some of its dropped techniques were measured slower when
    dropped together, or one may replace another.
    """
    sets, forecast = by_set(usable), {}
    for techniques, whole in sorted(sets.items(), key=lambda item: len(item[0])):
        without = {
            name: sets[techniques - {name}]
            for name in sorted(techniques)
            if techniques - {name} in sets
        }
        spare = [
            name
            for name, c in without.items()
            if ratio(whole.ms, c.ms).verdict in AS_GOOD
            or ratio(whole.mib, c.mib).verdict in AS_GOOD
        ]
        contradicted = []
        for n in range(2, len(spare) + 1):
            for dropped in map(frozenset, combinations(spare, n)):
                rest, singly = techniques - dropped, [without[name] for name in sorted(dropped)]
                ms = whole.ms + sum(c.ms - whole.ms for c in singly)
                mib = whole.mib + sum(c.mib - whole.mib for c in singly)
                if rest in sets:
                    if ratio(ms, sets[rest].ms).verdict == "slower":
                        contradicted.append(dropped)
                elif (
                    rest not in forecast
                    and not any(part <= dropped for part in contradicted)
                    and not any(_may_replace(a, b, effects) for a in dropped for b in dropped - {a})
                ):
                    rests_on = (whole.name, *(c.name for c in singly))
                    forecast[rest] = Candidate(rest, ms, mib, None, rests_on)
    return list(forecast.values())


def _may_replace(other, name, effects):
    """Tell whether a whole may spare `name` because of `other`: no set where `name` is faster has
    `other`, or is no faster with it."""
    gaining = [
        rest
        for (rest, added), effect in effects.items()
        if added == name and effect.ratio.verdict == "faster"
    ]
    cleared = (
        other in rest
        or (rest, other) in effects
        and effects[rest, other].ratio.verdict in ("slower", "no detectable difference")
        for rest in gaining
    )
    return bool(gaining) and not any(cleared)


def shortest(candidates, metric, best):
    """Return the candidate with the fewest techniques that is not significantly worse than the best
    by the metric (ms or mib) and whose script can be made. Measured ones come before forecasts,
    then the best by the metric."""
    target = getattr(best, metric)
    fit = [c for c in candidates if ratio(target, getattr(c, metric)).verdict in AS_GOOD]
    fit.sort(key=lambda c: (len(c.techniques), not c.name, mean(getattr(c, metric) - target)))
    return next((c for c in fit if made(c)), best)


def made(candidate):
    """Return the candidate's script or variant, or None if its merges conflict."""
    try:
        if candidate.name:
            return variants.find(candidate.name)
        if of_base := bases.split(candidate.rests_on[0]):
            script = bases.named(of_base[0], candidate.techniques)
            return None if bases.refusal(script) else script
        return variants.made_of(candidate.techniques)
    except UserError:
        return None
