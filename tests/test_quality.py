"""The grade of a run: what taints it, and what does not."""

from types import SimpleNamespace

import numpy as np
import pytest

from Utils.harness import run_record

STEADY = [100.0, 101.0, 99.0] * 15
COUNTERS = {
    "clock_s": 10.0,
    "all_cpu_s": 40.0,
    "busy_cpu_s": 30.0,
    "own_cpu_s": 29.0,
    "steal_s": 0.1,
    "energy_j": 3000.0,
    "thermal_violation_s": 0.05,
}
NORMAL = ["sw power cap", "applications clocks setting", "sync boost", "reliability"]
MANY = ["python3 (pid 9, 3 MiB)", "pid 4711", "pid 4712"]


def grade(step_ms=STEADY, throttled=NORMAL, others=(), **counters):
    readings = {"temperature_c": 61, "throttle_reasons": throttled}
    counters = COUNTERS | counters
    rank = SimpleNamespace(other_processes=others, counters=counters, readings=readings, node=0)
    graded = run_record.run_quality([rank], step_ms)
    assert graded["grade"] == ("tainted" if graded["reasons"] else "clean")
    return graded


def steps(change=0.0, noise=0.01, seed=0):
    """Step times that change steadily by that much from the first third's middle to the last's."""
    trend = 1 + change * (np.linspace(0, 1.5, 45) - 0.25)
    return list(trend * (1 + noise * np.random.default_rng(seed).standard_normal(45)))


def test_quality_of_an_undisturbed_run_has_what_was_read():
    assert grade() == COUNTERS | {
        "grade": "clean",
        "reasons": [],
        "other_processes": [],
        "temperature_c": 61,
        "throttle_reasons": NORMAL,
        "mean_power_w": 300.0,
        "other_cpu_share": 0.024,
        "steal_share": 0.0025,
        "drift": 0.0,
    }


@pytest.mark.parametrize(
    "counter, value, reasons",
    [
        ("own_cpu_s", 28.1, []),
        ("own_cpu_s", 27.9, ["other processes took 5% of the cores"]),
        ("steal_s", 0.79, []),
        ("steal_s", 0.81, ["the hypervisor took 2% of the cores"]),
        ("thermal_violation_s", 0.09, []),
        ("sw_thermal_slowdown_s", 1.2, ["thermal slowdown in 12% of the time"]),
        ("hw_thermal_slowdown_s", 0.11, ["thermal slowdown in 1% of the time"]),
        ("hw_power_brake_slowdown_s", 1.2, ["power brake in 12% of the time"]),
    ],
)
def test_quality_is_tainted_by_shares_over_a_limit(counter, value, reasons):
    """METHOD: "other processes used more than 5% of the cores' time"; "the hypervisor took more
    than 2% of it"; "heat or a power fault limits clocks at the end, or did for more than 1% of the
    time".
    """
    assert grade(**{counter: value})["reasons"] == reasons


def test_quality_is_tainted_by_processes_and_throttling():
    """README: "A run that another process, heat or drift disturbed is marked"."""
    slowdowns = ["hw slowdown", "hw thermal slowdown", "hw power brake slowdown"]
    assert grade(throttled=NORMAL + slowdowns)["reasons"] == slowdowns
    graded = grade(others=MANY)
    assert graded["reasons"] == ["python3 (pid 9, 3 MiB) and 2 more on the GPU"]
    assert graded["other_processes"] == MANY


def test_quality_of_a_short_run_allows_for_ticks_alone():
    """The kernel counts in ticks of 10 ms, a fifth of 50 ms."""
    short = {"clock_s": 0.05, "all_cpu_s": 0.2, "steal_s": 0.0, "thermal_violation_s": 0.0}
    assert grade(**short, busy_cpu_s=0.1, own_cpu_s=0.06)["grade"] == "clean"
    shared = grade(**short, busy_cpu_s=0.2, own_cpu_s=0.1)
    assert shared["reasons"] == ["other processes took 30% of the cores"]
    assert "other_cpu_share" not in grade(all_cpu_s=0.0)


@pytest.mark.parametrize("change, words", [(0.08, "slowed by"), (-0.08, "sped up by")])
def test_quality_finds_a_drift_of_8_percent_in_noise_of_1(change, words):
    """METHOD: "the last third's median step differs from the first third's by more than 5%, and
    Kendall's rank correlation of time and step has p < 0.001".
    """
    for seed in range(20):
        graded = grade(steps(change, seed=seed))
        assert graded["drift"] == pytest.approx(change, abs=0.02)
        assert graded["reasons"][0].startswith(words)


def test_quality_hardly_ever_takes_noise_for_drift():
    grades = [grade(steps(noise=0.3, seed=seed))["grade"] for seed in range(600)]
    assert grades.count("tainted") <= 4
    assert grade(steps(0.04, noise=0.001))["reasons"] == []  # certain, but small

    slower = [100 * 1.5**step for step in range(8)]
    assert grade(slower)["reasons"] == ["slowed by 1039% during the run"]
    assert grade(slower[:7])["reasons"] == [] and "drift" not in grade(slower[:2])
