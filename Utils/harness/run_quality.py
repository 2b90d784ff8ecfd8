"""Quality of one run's timing: clean, or tainted with the reasons.

It comes from counters read before the first timed step and after the last, readings taken after the
last, and the step times themselves. Nothing is polled while steps run.
"""

import math
import statistics
from itertools import combinations

OTHER_CPU_SHARE = 0.05  # shells and daemons of an idle machine stay well below, a compiler not
STEAL_SHARE = 0.02  # lower: other processes may use idle cores, stolen time is always lost
SHORTEST_S = 1.0  # the kernel counts in ticks of up to 10 ms: too coarse for shorter runs
SLOWED_SHARE = 0.01  # a single short dip does not move the median
SLOWDOWNS = ("hw slowdown", "hw thermal slowdown", "sw thermal slowdown", "hw power brake slowdown")
SLOWED = {  # counters: an older driver's, and a newer one's
    "thermal_violation_s": "thermal slowdown",
    "sw_thermal_slowdown_s": "thermal slowdown",
    "hw_thermal_slowdown_s": "thermal slowdown",
    "hw_power_brake_slowdown_s": "power brake",
}
# Both are required: a change too small to matter can be significant, and a large one be chance.
DRIFT = 0.05
DRIFT_P = 0.001
DRIFT_STEPS = 7  # no order of fewer steps has a p-value below DRIFT_P


def describe(other_processes, before, after, readings, step_ms):
    """Return the quality of a run for its record, a dict without values that are not known.

    grade ("clean" or "tainted"), reasons (short phrases), other_processes (on the GPU); the
    device's readings; over the timed steps the growth of its counters, mean_power_w,
    other_cpu_share and steal_share (fractions of all cores' time), and drift (relative change of
    the median step from the first third to the last).

    other_processes: on the GPU, in words.
    before, after: the device's counters at the two ends of the timed steps. readings: at the end.
    step_ms: milliseconds of the timed steps, in order.
    """
    facts = readings | {name: after[name] - before[name] for name in after if name in before}
    if "energy_j" in facts:
        facts["mean_power_w"] = facts["energy_j"] / facts["clock_s"]
    if facts.get("all_cpu_s") and facts["clock_s"] >= SHORTEST_S:
        # Can be below 0: own time is exact, that of the cores is counted in ticks.
        other_cpu_s = max(0.0, facts["busy_cpu_s"] - facts["own_cpu_s"])
        facts["other_cpu_share"] = other_cpu_s / facts["all_cpu_s"]
        if "steal_s" in facts:
            facts["steal_share"] = facts["steal_s"] / facts["all_cpu_s"]
    third = len(step_ms) // 3
    if third:
        first, last = statistics.median(step_ms[:third]), statistics.median(step_ms[-third:])
        facts["drift"] = last / first - 1
    reasons = list(_reasons(other_processes, facts, step_ms))
    return {
        "grade": "tainted" if reasons else "clean",
        "reasons": reasons,
        "other_processes": list(other_processes),
        **{name: round(x, 4) if isinstance(x, float) else x for name, x in facts.items()},
    }


def _reasons(other_processes, facts, step_ms):
    if other_processes:
        more = len(other_processes) - 1
        yield f"{other_processes[0]}{f' and {more} more' if more else ''} on the GPU"
    if facts.get("other_cpu_share", 0) > OTHER_CPU_SHARE:
        yield f"other processes took {facts['other_cpu_share']:.0%} of the cores"
    if facts.get("steal_share", 0) > STEAL_SHARE:
        yield f"the hypervisor took {facts['steal_share']:.0%} of the cores"
    yield from (reason for reason in facts.get("throttle_reasons", ()) if reason in SLOWDOWNS)
    for cause in dict.fromkeys(SLOWED.values()):
        counters = [name for name in SLOWED if SLOWED[name] == cause]
        share = max(facts.get(name, 0) for name in counters) / facts["clock_s"]
        if share > SLOWED_SHARE:
            yield f"{cause} in {share:.0%} of the time"
    enough_steps = len(step_ms) >= DRIFT_STEPS
    drifted = enough_steps and abs(facts["drift"]) > DRIFT
    if drifted and _trend_p(step_ms) < DRIFT_P:
        change = "slowed" if facts["drift"] > 0 else "sped up"
        yield f"{change} by {abs(facts['drift']):.0%} during the run"


def _trend_p(step_ms):
    """Return the p-value of Kendall's rank correlation of time and step."""
    try:
        from scipy.stats import kendalltau  # here, because few runs need it
    except ImportError:  # in the environment of a user's own script: by the normal approximation
        n = len(step_ms)
        concordant = sum(math.copysign(1, b - a) for a, b in combinations(step_ms, 2) if a != b)
        z = abs(concordant) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return math.erfc(z / math.sqrt(2))
    return kendalltau(range(len(step_ms)), step_ms).pvalue
