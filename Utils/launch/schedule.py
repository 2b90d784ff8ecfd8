"""The order of a suite: which scripts run next and for how many steps, or why none does.

It starts no process and opens no file. The first group of the first round measures: its processes
start and warm up, and the length of every run follows from how long that took.
"""

import math
import time
from bisect import bisect_right

from Utils.base.text import plural
from Utils.launch.costs import Costs
from Utils.launch.round_plan import RoundPlan

MOST_ROUNDS = 8  # in one command with a time limit
FEWEST_STEPS = 4  # after warm-up: one untimed and three timed steps
MARGIN = 1.1  # factor on expected times that have to fit
NARROW = 0.01  # half width of intervals that ends a suite with a limit of time


class Schedule:
    """The rounds of a command, which a launcher asks for one after the other.

    args.rounds rounds run, from args.round on. With args.precision, more run until every interval
    over a parent is at most that wide to either side, or args.timeout minutes have passed.

    With a limit of time, args.rounds does not matter: rounds run while they fit into it, in pairs
    of one in each direction, or until every interval is narrow enough.

    args: a command's settings.
    minutes: limit of the time, None without one.
    clock: function that returns seconds.
    """

    def __init__(self, args, minutes=None, clock=time.monotonic):
        self.args = args
        self.minutes = minutes
        self.clock = clock
        self.started = None  # what is prepared before does not count
        self.suite = None
        self.costs = Costs(args)
        self.share = 1.0  # share of the time for suites until it is changed
        self.rounds_ended = 0  # in this command, if its time is limited

    def start(self):
        """Start the command's time, if it has not started."""
        if self.started is None:
            self.started = self.clock()

    def begin(self, ladder, suite, first_only=False):
        """Take the Ladder of a suite, and its SuiteState. The first one starts the command's time.

        first_only: after one round no other is asked for.

        most_steps: longest run after its warm-up, None until the first group has started.
        last_round_s: seconds of a round as the last one has measured them, 0 if unknown.
        number: the present round's, or the next one's.
        last: the last round that is certain to run.
        """
        self.ladder = self.costs.ladder = ladder
        self.suite = suite
        self.first_only = first_only
        self.most_steps = suite.most_steps
        self.last_round_s = suite.last_round_s
        self.start()
        self.deadline = self.started + 60 * self.share * (self.minutes or math.inf)

        self.round = None  # the RoundPlan of the present round
        self.number = self.args.round
        self.last = self.number if first_only else self.number + self.args.rounds - 1
        if self.minutes:
            while not self.missing(self.number):
                self.number += 1
            self.last = self.number
            if self.last_round_s and self.number not in suite.done:  # it may be too long
                self.last -= 1

    def missing(self, number):
        """Return the names of the scripts that a round lacks."""
        ladder = self.ladder if number == self.args.round else self.ladder.repeated()
        return ladder.scripts.keys() - self.suite.done.get(number, set())

    def rounds(self, say):
        """Yield a RoundPlan for each round, until no other is asked for or fits.

        say: function that prints the reason.
        """
        goes_on = self._fits if self.minutes else self._is_asked
        while self.number <= self.last or goes_on(say):
            self.round = RoundPlan(self.ladder, self.number, self.missing(self.number))
            yield self.round

            # The round has run.
            self.number += 1
            if self.minutes:
                if not self.costs.paces:  # no script has reached its first step
                    return
                self.rounds_ended += 1
                self.last_round_s = self.costs.round_s(self.most_steps)
                self.suite.save(self)
            if self.first_only:
                return

    def _is_asked(self, say):
        """Return whether another round is needed for the precision."""
        if not self.args.precision:
            return False

        width, text = self.suite.widest_interval()
        if width <= self.args.precision:
            say(f"\n{text}: as narrow as PRECISION={self.args.precision:.1%} asks")
            return False
        if self.clock() - self.started > 60 * self.args.timeout:
            say(f"\nTIMEOUT={self.args.timeout} minutes have passed; {text or 'no interval yet'}")
            return False
        say(f"\n{text or 'too few rounds for an interval'}: one round more")
        return True

    def _fits(self, say):
        """Return whether the next round fits into the time, and an interval is too wide."""
        count = self.number - self.args.round  # rounds of the suite
        width, text = self.suite.widest_interval()
        is_enough = count % 2 == 0 and width <= (self.args.precision or NARROW)
        if not is_enough and self._has_time(count):
            return True

        minutes = math.ceil(self._seconds_for_another(count) / self.share / 60)
        more = f"MINUTES={max(minutes, math.ceil(self.minutes) + 1)} has"
        if is_enough:
            remark = f"{text}: narrow enough"
        elif count == 1:
            remark = f"{more} a second one, for intervals"
        elif not self.rounds_ended:
            remark = f"no other fits; {more} more"
        else:
            halves = f"MINUTES={4 * self.minutes:g} about halves it"
            remark = f"{text or 'intervals are wide'}; {halves}"
        rounds = f"{plural(count, 'round')} of {plural(len(self.ladder), 'script')}"
        took = math.ceil((self.clock() - self.started) / 60)
        time_taken = f" in {took} min" if self.rounds_ended else ""
        say(f"\n{rounds}{time_taken}; {remark}")
        return False

    def _has_time(self, count):
        """Return whether another round fits, or a pair of them after an even number."""
        fits = self._seconds_for_another(count) <= 60 * self.share * self.minutes
        return fits and self.rounds_ended < MOST_ROUNDS

    def _seconds_for_another(self, count):
        """Return the seconds of the command with what `_has_time` asks for."""
        rounds = 1 if count % 2 else 2
        return self.clock() - self.started + MARGIN * rounds * self.last_round_s

    def steps(self):
        """Return the longest run after the warm-up, in steps. The first group has warmed up.

        A pair of rounds, one in each direction, comes before long runs.
        """
        if self.minutes and self.most_steps is None:
            longest = max(steps for _, steps in self.costs.paces.values())
            fitting = self._fitting_steps(2, longest)
            if fitting < FEWEST_STEPS:
                fitting = self._fitting_steps(1, longest)
            self.most_steps = max(fitting, min(FEWEST_STEPS, longest))
            self.suite.save(self)
        return self.most_steps or math.inf

    def _fitting_steps(self, rounds, longest):
        """Return the most steps of a run, up to `longest`, with which the rounds fit."""
        runs = self.round.runs_left()
        started_s = self.costs.seconds(self.costs.paces, 0)

        def expected_s(steps):
            seconds = self.costs.seconds(runs, steps) - started_s
            return MARGIN * (seconds + (rounds - 1) * self.costs.round_s(steps))

        return bisect_right(range(1, longest + 1), self.seconds_left(), key=expected_s)

    def runs_left(self):
        """Return the number of runs that are certain, those of the present group included."""
        missing = self.round.missing if self.round else self.missing(self.number)
        later = map(self.missing, range(self.number + 1, self.last + 1))
        return len(missing) + sum(map(len, later))

    def seconds_left(self, group_s=0.0):
        """Return the seconds until the deadline, without one until all certain runs have ended.

        group_s: seconds since the present group began.
        """
        if self.minutes:
            return self.deadline - self.clock()
        later_rounds = max(0, self.last - self.number)
        round_s = self.costs.seconds(self.round.runs_left())
        return round_s - group_s + later_rounds * self.costs.round_s()
