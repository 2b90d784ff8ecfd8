"""The grade of a run: what taints it, and what does not."""

import re

import numpy as np
import pytest

from Utils.harness import run_record

STEADY = [100.0, 101.0, 99.0] * 15
CORES = {"clock_s": 10.0, "all_cpu_s": 40.0, "busy_cpu_s": 30.0, "own_cpu_s": 29.0, "steal_s": 0.1}
GPU = {"clock_s": 10.0, "energy_j": 3000.0, "thermal_violation_s": 0.05}
NORMAL = ["sw power cap", "applications clocks setting", "sync boost", "reliability"]
MANY = ["python3 (pid 9, 3 MiB)", "pid 4711", "pid 4712"]


def grade(counters=GPU, readings=None, step_ms=STEADY, others=()):
    graded = run_record.rank_quality(others, counters, readings or {}, step_ms)
    assert graded["grade"] == ("tainted" if graded["reasons"] else "clean")
    return graded


def steps(change=0.0, noise=0.01, count=45, seed=0):
    """Step times that change steadily by that much from the middle of the first third to that of
    the last."""
    trend = 1 + change * (np.linspace(0, 1.5, count) - 0.25)
    return list(100 * trend * (1 + noise * np.random.default_rng(seed).standard_normal(count)))


def test_a_run_with_nothing_against_it_is_clean_and_shows_what_was_read():
    graded = grade(readings={"temperature_c": 61, "throttle_reasons": []})
    assert graded["grade"] == "clean" and graded["reasons"] == graded["other_processes"] == []
    assert graded["temperature_c"] == 61 and graded["throttle_reasons"] == []
    assert graded["energy_j"] == 3000 and graded["mean_power_w"] == 300
    assert graded["thermal_violation_s"] == 0.05 and graded["drift"] == 0


@pytest.mark.parametrize(
    ("counters", "throttled", "others", "reason"),
    [
        (GPU, [], MANY[:1], "python3 (pid 9, 3 MiB) on the GPU"),
        (GPU, [], MANY, "python3 (pid 9, 3 MiB) and 2 more on the GPU"),
        (CORES | {"own_cpu_s": 28.1}, [], [], None),
        (CORES | {"own_cpu_s": 27.9}, [], [], "other processes took 5% of the cores"),
        (CORES | {"own_cpu_s": 31}, [], [], None),
        (CORES | {"steal_s": 0.79}, [], [], None),
        (CORES | {"steal_s": 2.0}, [], [], "the hypervisor took 5% of the cores"),
        (GPU, NORMAL, [], None),
        *((GPU, [*NORMAL, slowdown], [], slowdown) for slowdown in run_record.SLOWDOWNS),
        (GPU | {"thermal_violation_s": 0.09}, [], [], None),
        (GPU | {"thermal_violation_s": 1.2}, [], [], "thermal slowdown in 12% of the time"),
        (GPU | {"sw_thermal_slowdown_s": 1.2}, [], [], "thermal slowdown in 12% of the time"),
        (GPU | {"hw_thermal_slowdown_s": 1.2}, [], [], "thermal slowdown in 12% of the time"),
        (GPU | {"hw_power_brake_slowdown_s": 1.2}, [], [], "power brake in 12% of the time"),
    ],
)
def test_other_processes_heat_and_a_failing_supply_taint(counters, throttled, others, reason):
    graded = grade(counters, {"throttle_reasons": throttled}, others=others)
    assert graded["reasons"] == ([reason] if reason else [])
    assert graded["other_processes"] == others


def test_shares_are_not_told_where_the_kernel_counts_too_coarsely():
    assert grade(CORES)["other_cpu_share"] == 0.025 and "mean_power_w" not in grade(CORES)
    graded = grade({name: value * 0.09 for name, value in (CORES | {"own_cpu_s": 0}).items()})
    assert not {"other_cpu_share", "steal_share"} & graded.keys()
    assert graded["grade"] == "clean"
    assert "other_cpu_share" not in grade(CORES | {"all_cpu_s": 0.0})  # a kernel that counts none


@pytest.mark.parametrize("seed", range(20))
def test_a_drift_of_8_percent_is_found_in_noise_of_1(seed):
    for change, words in ((0.08, "slowed"), (-0.08, "sped up")):
        graded = grade(step_ms=steps(change, seed=seed))
        assert graded["drift"] == pytest.approx(change, abs=0.02)
        (said,) = graded["reasons"]
        assert re.fullmatch(rf"{words} by ([6-9]|10)% during the run", said)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.3])
def test_noise_is_hardly_ever_taken_for_drift(noise):
    grades = [grade(step_ms=steps(noise=noise, seed=seed))["grade"] for seed in range(1000)]
    assert grades.count("tainted") <= 10


@pytest.mark.parametrize("slow", [0, 7, 22, 44])
def test_a_small_drift_or_a_single_slow_step_does_not_taint(slow):
    graded = grade(step_ms=steps(0.04, noise=0.001))  # certain, but small
    assert graded["grade"] == "clean" and graded["drift"] == pytest.approx(0.04, abs=0.005)
    outlier = steps()
    outlier[slow] *= 50
    graded = grade(step_ms=outlier)
    assert graded["grade"] == "clean" and abs(graded["drift"]) < 0.02


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8])
def test_a_few_steps_show_no_drift(count):
    graded = grade(step_ms=[100 * 1.5**step for step in range(count)])
    assert (graded["grade"] == "clean") == (count < run_record.DRIFT_STEPS)
    assert ("drift" in graded) == (count >= 3)
