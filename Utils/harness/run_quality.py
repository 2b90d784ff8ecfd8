"""Quality of one run's timing: clean, or tainted with the reasons.

It comes from counters read before the first timed step and after the last, readings taken after the
last, and the step times themselves. Nothing is polled while steps run.
"""

import math
import statistics

import numpy as np

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
DRIFT_STEPS = 8  # no order of fewer steps has a p-value below DRIFT_P


def of_ranks(ranks, step_ms):
    """Return the quality of a run: that of rank 0, tainted where any rank is.

    ranks: their RankResults. step_ms: as of `describe`. Ranks of one machine share its cores: their
    CPU time is summed, so that none counts as another process.
    """
    qualities = {}
    for number, rank in enumerate(ranks):
        counters = rank.counters
        if "own_cpu_s" in counters:
            same_node = [member for member in ranks if member.node == rank.node]
            if rank is not same_node[0]:
                continue
            own_cpu_s = sum(member.counters["own_cpu_s"] for member in same_node)
            counters = counters | {"own_cpu_s": own_cpu_s}
        qualities[number] = describe(rank.other_processes, counters, rank.readings, step_ms)
    reasons = list(qualities[0]["reasons"])
    for number, quality in qualities.items():
        new = [reason for reason in quality["reasons"] if reason not in qualities[0]["reasons"]]
        reasons += [f"rank {number}: {reason}" for reason in new]
    return qualities[0] | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}


def describe(other_processes, counters, readings, step_ms):
    """Return the quality of a run for its record, a dict without values that are not known.

    grade ("clean" or "tainted"), reasons (short phrases), other_processes (on the GPU); the
    device's readings; over the timed steps the growth of its counters, mean_power_w,
    other_cpu_share and steal_share (fractions of all cores' time), and drift (relative change of
    the median step from the first third to the last).

    other_processes: on the GPU, in words. counters: their growth over the timed steps.
    readings: at the end. step_ms: milliseconds of the timed steps, in order.
    """
    facts = readings | counters
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
    n = len(step_ms)
    if n >= DRIFT_STEPS and abs(facts["drift"]) > DRIFT:
        # Kendall's rank correlation of time and step, by its normal approximation.
        ordered = np.triu(np.sign(np.subtract.outer(step_ms, step_ms))).sum()
        z = abs(ordered) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        if math.erfc(z / math.sqrt(2)) < DRIFT_P:
            change = "slowed" if facts["drift"] > 0 else "sped up"
            yield f"{change} by {abs(facts['drift']):.0%} during the run"
