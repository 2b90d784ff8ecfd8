"""How many steps and rounds of a suite fit into the time of a command.

The first group of the first round measures: its processes start and warm up, and the length of
every run follows from how long that took. A script that has not run yet is expected to take as
long as its nearest ancestor that has.
"""

import math
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field

from Utils.base.errors import UserError

MOST_ROUNDS = 8  # of one command
FEWEST_STEPS = 4  # of a run after its warm-up: the first one of a turn, and three timed
COMPILE_S = 25  # first compilation, if none was measured
COMPILED_AGAIN = 0.4  # share of it that one with a filled cache takes
MARGIN = 1.1  # factor on expected times


@dataclass(frozen=True)
class Pace:
    """How long a script takes."""

    start_s: float  # from the start of its process to the end of its warm-up
    step_s: float
    steps: int  # after the warm-up, if time does not matter
    compiles: bool
    is_first: bool  # graphs were not in the compiler's cache


@dataclass
class TimePlan:
    """The time of a command, and what was measured in it.

    minutes: time for all rounds.
    most_rounds: of this command.
    clock: function that returns seconds.
    most_steps: longest run of a script after its warm-up. None until the first group has started.
    last_round_s: seconds of a round as the suite's last one has measured them, 0 if unknown.
    started: time at which the suite began: what is prepared before does not count.
    later_runs: names of the scripts that run in this round after the present group. The suite sets
        them, as the next.
    runs_of_round: the same for all groups of a round.
    save: function that stores most_steps and last_round_s.
    """

    minutes: float
    clock: object = time.monotonic
    most_rounds: int = MOST_ROUNDS
    most_steps: int | None = None
    last_round_s: float = 0.0
    rounds: int = 0  # ended in this command
    started: float | None = None
    later_runs: list = ()
    runs_of_round: list = ()
    save: object = lambda: None
    paces: dict = field(default_factory=dict)  # by the names of scripts

    def start(self, ladder):
        """Take the Ladder of a suite. The first one starts the time of the command."""
        self.ladder = ladder
        if self.started is None:
            self.started = self.clock()
            self.deadline = self.started + 60 * self.minutes

    def add(self, script, start_s, report):
        """Store the Pace of a script that has warmed up, by the report of its process."""
        self.paces[script.name] = Pace(
            start_s=start_s,
            step_s=report["pace_s"],
            steps=report["left"],
            compiles="compile" in script.needs,
            is_first=script.name not in self.paces,
        )

    def steps(self, live):
        """Return the longest run after the warm-up, in steps.

        A pair of rounds, one in each direction, comes before long runs.

        live: names of the scripts that have warmed up.
        """
        if self.most_steps is None:
            longest = max(self.paces[name].steps for name in live)
            fitting = self._fitting_steps(2, live, longest)
            if fitting < FEWEST_STEPS:
                fitting = self._fitting_steps(1, live, longest)
            self.most_steps = max(fitting, min(FEWEST_STEPS, longest))
            self.save()
        return self.most_steps

    def _fitting_steps(self, rounds, live, longest):
        """Return the most steps of a run, up to `longest`, with which so many rounds fit."""

        def expected_s(steps):
            seconds = self._rest_of_round_s(steps, live) + (rounds - 1) * self.round_s(steps)
            return MARGIN * seconds

        seconds_left = self.deadline - self.clock()
        return bisect_right(range(1, longest + 1), seconds_left, key=expected_s)

    def end_round(self):
        """Count a round that has run, and store what was measured in it."""
        self.rounds += 1
        self.last_round_s = self.round_s()
        self.save()

    def fits_another(self, rounds_of_suite):
        """Return whether another round fits, or a pair of them after an even number of rounds."""
        seconds = self._seconds_for_another(rounds_of_suite)
        return self.rounds < self.most_rounds and seconds <= 60 * self.minutes

    def minutes_for_another(self, rounds_of_suite):
        """Return the MINUTES with which what `fits_another` asks for would have fit."""
        minutes = math.ceil(self._seconds_for_another(rounds_of_suite) / 60)
        return max(minutes, math.ceil(self.minutes) + 1)

    def _seconds_for_another(self, rounds_of_suite):
        missing = 1 if rounds_of_suite % 2 else 2
        return self.clock() - self.started + MARGIN * missing * self.last_round_s

    def steps_fit(self, times):
        """Return whether all steps of a round were taken, and fit so many times, without starts."""
        longest = max(pace.steps for pace in self.paces.values())
        seconds = sum(self._training_s(name, longest) for name in self.runs_of_round)
        return self.most_steps >= longest and times * seconds <= 60 * self.minutes

    def round_s(self, steps=None):
        """Return the seconds of a whole round after the first."""
        steps = steps or self.most_steps
        return sum(
            self._start_s(name, again=True) + self._training_s(name, steps)
            for name in self.runs_of_round
        )

    def _rest_of_round_s(self, steps, live):
        """Return the seconds until this round has ended. live: see `steps`."""
        seconds = sum(self._training_s(name, steps) for name in [*live, *self.later_runs])
        return seconds + sum(self._start_s(name) for name in self.later_runs)

    def _training_s(self, name, steps):
        pace = self._pace(name)
        return min(steps, pace.steps) * pace.step_s

    def _start_s(self, name, again=False):
        """Return the seconds in which a script starts. again: it has run before."""
        pace = self._pace(name)
        plain_s = min(pace.start_s for pace in self.paces.values())
        if "compile" not in self.ladder.get(name).needs:
            return plain_s if pace.compiles else pace.start_s

        compile_s = pace.start_s - plain_s if pace.compiles else COMPILE_S
        is_cached = again and (pace.is_first or not pace.compiles)
        return plain_s + compile_s * (COMPILED_AGAIN if is_cached else 1.0)

    def _pace(self, name):
        """Return the Pace of a script, of its nearest ancestor that has one, or the slowest."""
        ancestors = [name]
        with suppress(UserError):  # a parent is unknown
            ancestors = self.ladder.lineage(name)[::-1]
        for ancestor in ancestors:
            if ancestor in self.paces:
                return self.paces[ancestor]
        return max(self.paces.values(), key=lambda pace: pace.step_s)
