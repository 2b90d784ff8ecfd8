"""The rounds of a command: which scripts run next, for how many steps, and how long they take."""

from types import SimpleNamespace

import pytest

from tests.helpers.rows import REPOSITORY
from Utils.launch.schedule import Schedule

LADDER = REPOSITORY.group("ladder")
NAMES = [*LADDER.scripts]


@pytest.fixture
def schedule():
    """A Schedule of ten minutes whose clock is at `now`.

    plans: its rounds, of which the first runs. said, stored: what it has said and stored.
    """
    args = SimpleNamespace(round=0, rounds=3, precision=None)
    schedule = Schedule(args, 10, clock=lambda: schedule.now)
    schedule.now = 0.0
    schedule.said = []
    schedule.stored = []
    schedule.begin(
        LADDER,
        SimpleNamespace(
            done={},
            most_steps=None,
            last_round_s=0.0,
            save=lambda schedule: schedule.stored.append(schedule.most_steps),
            disturbed_runs=dict,
        ),
    )
    schedule.plans = schedule.rounds(schedule.said.append)
    next(schedule.plans)
    return schedule


def warm_up(schedule, step_s, start_s=10.0, compile_s=20.0):
    """Let the first group warm up, one process after the other."""
    for name in NAMES[:4]:
        seconds = start_s + compile_s * ("compile" in LADDER.get(name).needs)
        schedule.costs.add(name, seconds, {"pace_s": step_s, "left": 45})
        schedule.now += seconds


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
def test_schedule_has_fewer_steps_before_fewer_rounds(schedule, step_s, steps):
    """MEASURE: "50 steps, or fewer if 50 do not fit, at least three of them timed"."""
    warm_up(schedule, step_s)
    assert schedule.steps() == steps and schedule.stored == [steps]
    schedule.now = 9e9
    assert schedule.steps() == steps  # chosen once


# MINUTES, half the widest interval, and the last line. 300 s have passed; another round takes
# 171.6 s with the margin.
ENDS = """\
1  0.02 1 round of 7 scripts in 5 min; MINUTES=8 has a second one, for intervals
10 0.02 2 rounds of 7 scripts in 5 min; wide; MINUTES=40 about halves it
99 0.01 2 rounds of 7 scripts in 5 min; wide: narrow enough
99 0.02 8 rounds of 7 scripts in 5 min; wide; MINUTES=396 about halves it
"""


@pytest.mark.parametrize("line", ENDS.splitlines())
def test_schedule_has_rounds_until_none_fits(schedule, line):
    """MEASURE: "Rounds come in pairs, one in each direction, while another pair fits, at most 8.
    If no pair fits, there is one round. Rounds end early [...] once every interval over the script
    before is within 1%".
    """
    minutes, width, said = line.split(maxsplit=2)
    warm_up(schedule, 0.1)
    schedule.steps()
    schedule.minutes = int(minutes)
    schedule.suite.widest_interval = lambda: (float(width), "wide")
    schedule.now = 300
    assert 1 + len([*schedule.plans]) == int(said[0])
    assert schedule.said == [f"\n{said}"]


def test_schedule_knows_what_is_left_of_its_time_or_of_its_rounds(schedule):
    warm_up(schedule, 0.1)
    assert schedule.seconds_left() == 600 - 60 and schedule.runs_left() == 7

    schedule.minutes = None
    schedule.begin(LADDER, schedule.suite)
    next(schedule.rounds(print))
    # Two groups, of which one compiles, and two rounds with graphs that are cached.
    seconds = 3 * 10 + 5 * 30 + 8 * 4.5 + 2 * (3 * 10 + 5 * 18 + 8 * 4.5)
    assert schedule.seconds_left(9.0) == pytest.approx(seconds - 9)
    assert schedule.runs_left() == 21
