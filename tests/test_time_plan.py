"""The time of a command: how many steps a run has, and how many rounds are run."""

from types import SimpleNamespace

import pytest

from tests.helpers.rows import REPOSITORY
from Utils.launch import time_plan
from Utils.launch.time_plan import TimePlan

LADDER = REPOSITORY.group("ladder")
NAMES = [*LADDER.scripts]
GROUPS = [NAMES[:4], NAMES[3:]]  # the parent of the second group runs again


@pytest.fixture
def plan():
    """A plan of ten minutes whose clock is at `clock.now`."""
    clock = SimpleNamespace(now=0.0)
    plan = TimePlan(10, clock=lambda: clock.now)
    plan.start(LADDER)
    plan.later_runs = GROUPS[1]
    plan.runs_of_round = [*GROUPS[0], *GROUPS[1]]
    plan.at = lambda now: setattr(clock, "now", now)
    return plan


def warm_up(plan, step_s, start_s=10.0, compile_s=20.0, steps=45):
    """Let the first group warm up, one process after the other."""
    report = {"pace_s": step_s, "left": steps}
    for name in GROUPS[0]:
        compiles = "compile" in LADDER.get(name).needs
        plan.add(LADDER.get(name), start_s + compile_s * compiles, report)
    plan.at(4 * start_s + compile_s)


@pytest.mark.parametrize(
    "step_s, steps",
    [
        # Left of ten minutes: 540 s, or 490.9 with the margin. Starts of the second group take
        # 120 s, those of the second round 3 x 10 + 5 x 18 s, so 250.9 s for 16 runs.
        (0.1, 45),
        (1.0, 15),  # 15.7
        (3.0, 5),
        (5.0, 9),  # one round alone: 370.9 s for 8 runs
        (30.0, 4),  # one step of a turn, and three timed ones
    ],
)
def test_time_plan_has_fewer_steps_before_fewer_rounds(plan, step_s, steps):
    """COMMANDS: "50 steps, or fewer if 50 do not fit, at least three of them timed"."""
    stored = []
    plan.save = lambda: stored.append(plan.most_steps)
    warm_up(plan, step_s)
    assert plan.steps(GROUPS[0]) == steps and stored == [steps]
    plan.at(9e9)
    assert plan.steps(GROUPS[0]) == steps  # chosen once


def test_time_plan_has_a_most_of_rounds(plan):
    warm_up(plan, 0.1)
    plan.steps(GROUPS[0])
    plan.end_round()
    assert plan.last_round_s == pytest.approx(3 * 10 + 5 * 18 + 8 * 4.5) and plan.fits_another(1)
    plan.rounds = time_plan.MOST_ROUNDS
    assert not plan.fits_another(1)


@pytest.mark.parametrize("step_s, fits", [(0.16, True), (0.17, False)])
def test_time_plan_has_room_for_ten_times_the_steps(plan, step_s, fits):
    warm_up(plan, step_s)  # 8 runs of 45 steps in 600 s
    plan.steps(GROUPS[0])
    assert plan.steps_fit(10) == fits


def test_time_plan_takes_a_warm_start_as_it_was(plan):
    warm_up(plan, 0.1)
    warm_up(plan, 0.1, compile_s=5.0)
    assert plan.steps(GROUPS[0]) == 45
    assert plan.round_s() == pytest.approx(3 * 10 + 5 * 15 + 8 * 4.5)
