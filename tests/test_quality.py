"""The grade of a run: what taints it, and what does not."""

import re

import numpy as np
import pytest

from Utils.harness import run_quality

STEADY = [100.0, 101.0, 99.0] * 15
CORES = {"clock_s": 10.0, "all_cpu_s": 40.0, "busy_cpu_s": 30.0, "own_cpu_s": 29.0, "steal_s": 0.1}
GPU = {"clock_s": 10.0, "energy_j": 3000.0, "thermal_violation_s": 0.05}


def grade(grown=None, readings=None, step_ms=STEADY, others=()):
    """The quality of a run over which the counters grew by so much."""
    return run_quality.describe(others, grown or GPU, readings or {}, step_ms)


def reason(*args, **kwargs):
    """The only reason that such a run is tainted, or None."""
    graded = grade(*args, **kwargs)
    assert graded["grade"] == ("tainted" if graded["reasons"] else "clean")
    (reason,) = graded["reasons"] or [None]
    return reason


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


@pytest.mark.parametrize("grown", [{"clock_s": 5.0}, CORES])
def test_what_is_not_to_be_had_is_left_out(grown):
    graded = grade(grown)
    assert not {"energy_j", "mean_power_w", "sm_clock_mhz", "throttle_reasons"} & graded.keys()
    assert graded["grade"] == "clean"


# Others -----------------------------------------------------------------------------------------


def test_who_holds_the_gpu_is_named():
    assert reason(others=["python3 (pid 9, 3 MiB)"]) == "python3 (pid 9, 3 MiB) on the GPU"
    many = ["python3 (pid 9, 3 MiB)", "pid 4711", "pid 4712"]
    assert reason(others=many) == "python3 (pid 9, 3 MiB) and 2 more on the GPU"
    assert grade(others=many)["other_processes"] == many


@pytest.mark.parametrize(
    ("busy", "own", "words"),
    [
        (30, 29, None),
        (30, 28.1, None),
        (30, 27.9, "other processes took 5% of the cores"),
        (40, 20, "other processes took 50% of the cores"),
        (30, 31, None),
    ],
)
def test_others_may_take_a_twentieth_of_the_cores(busy, own, words):
    grown = CORES | {"busy_cpu_s": busy, "own_cpu_s": own}
    assert reason(grown) == words
    assert grade(grown)["other_cpu_share"] == pytest.approx(max(0, busy - own) / 40)


def test_a_hypervisor_may_take_a_fiftieth():
    assert reason(CORES | {"steal_s": 0.79}) is None
    assert reason(CORES | {"steal_s": 2.0}) == "the hypervisor took 5% of the cores"
    unknown = {name: value for name, value in CORES.items() if name != "steal_s"}
    assert "steal_share" not in grade(unknown) and grade(unknown)["other_cpu_share"] == 0.025


def test_shares_are_not_told_where_the_kernel_counts_too_coarsely():
    graded = grade({name: value * 0.09 for name, value in (CORES | {"own_cpu_s": 0}).items()})
    assert not {"other_cpu_share", "steal_share"} & graded.keys()
    assert graded["grade"] == "clean"
    assert "other_cpu_share" not in grade(CORES | {"all_cpu_s": 0.0})  # a kernel that counts none


# Clocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slowdown",
    ["hw slowdown", "hw thermal slowdown", "sw thermal slowdown", "hw power brake slowdown"],
)
def test_heat_and_a_failing_supply_taint_and_chosen_clocks_do_not(slowdown):
    normal = ["sw power cap", "applications clocks setting", "sync boost", "reliability"]
    assert reason(readings={"throttle_reasons": normal}) is None
    assert reason(readings={"throttle_reasons": [*normal, slowdown]}) == slowdown


def test_heat_that_is_over_by_the_end_taints_too():
    assert reason(GPU | {"thermal_violation_s": 0.09}) is None
    words = "thermal slowdown in 12% of the time"
    for counter in ("thermal_violation_s", "sw_thermal_slowdown_s", "hw_thermal_slowdown_s"):
        assert reason(GPU | {counter: 1.2}, {"throttle_reasons": []}) == words
    assert reason(GPU | {"hw_power_brake_slowdown_s": 1.2}) == "power brake in 12% of the time"


# Drift ------------------------------------------------------------------------------------------


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


def test_a_drift_that_is_certain_but_small_is_not_held_against_a_run():
    graded = grade(step_ms=steps(0.04, noise=0.001))
    assert graded["grade"] == "clean" and graded["drift"] == pytest.approx(0.04, abs=0.005)


@pytest.mark.parametrize("place", [0, 7, 22, 44])
def test_a_single_slow_step_does_not_taint(place):
    outlier = steps()
    outlier[place] *= 50
    graded = grade(step_ms=outlier)
    assert graded["grade"] == "clean" and abs(graded["drift"]) < 0.02


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_few_steps_show_no_drift(count):
    graded = grade(step_ms=[100 * 1.5**step for step in range(count)])
    assert graded["grade"] == "clean" and ("drift" in graded) == (count >= 3)
