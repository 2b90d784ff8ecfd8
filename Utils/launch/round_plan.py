"""What is left to run in a round of a suite."""

import copy

from Utils.launch.turn_taking import MOST_PROCESSES


class RoundPlan:
    """What is left to run in a round: scripts without a row, and pairs that take turns.

    A pair is a script and its parent. A parent of many runs several times.

    number: the round's, among those of a Ladder.
    missing: names of the scripts without a row; by default the round is a complete one after the
        first, in which nothing emulated runs.
    """

    def __init__(self, ladder, number=0, missing=None):
        self.number = number
        self.order = [script for script in ladder if not script.refusal]
        to_pair = ladder.repeated()
        self.missing = {*to_pair.scripts} if missing is None else missing
        self.pairs = {pair for pair in to_pair.pairs() if pair & self.missing}
        if number % 2:
            self.order.reverse()
        # What is emulated comes first: its time is known before the others'.
        self.order.sort(key=lambda script: not script.is_emulated)

    def next_group(self):
        """Return the scripts to run next, the first of them alone or with others in turns.

        Each further one makes a pair with one before it. Return nothing if the round is complete.
        """
        names_left = self.missing.union(*self.pairs)
        candidates = [script for script in self.order if script.name in names_left]
        group = []
        while candidates:
            group.append(candidates[0])
            names = {script.name for script in group}
            partners = set().union(*(pair for pair in self.pairs if pair & names)) - names
            candidates = [script for script in self.order if script.name in partners]
        return group

    def runs_left(self):
        """Return the names of the scripts that are left to run, if memory allows their groups."""
        remaining = copy.copy(self)
        runs = []
        while group := remaining.next_group():
            names = [script.name for script in group[:MOST_PROCESSES]]
            runs += names
            remaining.finish({*names}, {*names}, memory_is_full=False)
        return runs

    def finish(self, started, timed, memory_is_full):
        """Cross off a group after its runs. Return how many missing scripts it had.

        started: names of the scripts that ran.
        timed: names of those with timings. The others are in no pair that is left.
        memory_is_full: there was no memory for another script.
        """
        ended = self.missing & started
        self.missing = self.missing - ended

        runs_alone = memory_is_full and len(started) == 1
        unpaired = started if runs_alone else started - timed
        self.pairs = {pair for pair in self.pairs if not (pair <= started or pair & unpaired)}
        return len(ended)
