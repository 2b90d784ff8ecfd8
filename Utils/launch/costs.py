"""How long runs take: a start, perhaps a compilation, and steps.

It is known from the runs of this suite, and before them by the constants here. Whatever plans or
prints a time asks this module.
"""

import math
from statistics import mean

from Utils.launch.round_plan import RoundPlan

# In the rows of results/, a start without its steps takes 5 to 9 s, 12 on two slow cores; the first
# step of a compiled script 22 to 47 s, in half of the runs less than 28.
START_S = 8.0
COMPILE_S = 25.0
STEP_S = 1.0
COMPILED_AGAIN = 0.4  # share of a compilation that one with a filled cache takes


class Costs:
    """Expected seconds of the runs of a Ladder.

    args: has steps, warmup and min_seconds, whose auto counts as 0.

    paces: (seconds of a step, number of steps after a start) by name. A measured start includes the
        warm-up.
    starts_s, compilations_s, cached_s: what was measured of starts, first compilations and those
        with a filled cache.
    """

    def __init__(self, args, ladder=None):
        self.args = args
        self.ladder = ladder
        self.paces = {}
        self.starts_s = []
        self.compilations_s = []
        self.cached_s = []

    def add(self, name, start_s, report):
        """Learn from a script that has warmed up, by the report of its process."""
        if compiles(name, self.ladder):
            compilations_s = self.cached_s if name in self.paces else self.compilations_s
            compilations_s.append(start_s - mean(self.starts_s or [START_S]))
        else:
            self.starts_s.append(start_s)
        self.paces[name] = report["pace_s"], report["left"]

    def seconds(self, names, most_steps=math.inf, again=False):
        """Return the seconds of runs, one for each name. again: they have run before."""
        start_s = mean(self.starts_s or [START_S])
        compile_s = mean(self.compilations_s or [COMPILE_S])
        if again:
            compile_s = mean(self.cached_s or [COMPILED_AGAIN * compile_s])

        seconds = 0.0
        for name in names:
            step_s, steps = self.pace(name)
            seconds += start_s + min(steps, most_steps) * step_s
            if compiles(name, self.ladder):
                seconds += compile_s
        return seconds

    def round_s(self, most_steps=math.inf):
        """Return the seconds of a complete round after the first."""
        return self.seconds(RoundPlan(self.ladder).runs_left(), most_steps, again=True)

    def pace(self, name):
        """Return the pace of a script, of its nearest ancestor that has one, or the slowest.

        Before any was measured it is the one that the settings ask for.
        """
        parents = self.ladder.parents()
        while name in parents and name not in self.paces:
            name = parents[name]
        if self.paces:
            return self.paces.get(name) or max(self.paces.values())

        min_seconds = 0.0 if self.args.min_seconds == "auto" else self.args.min_seconds
        return STEP_S, max(self.args.steps, self.args.warmup + math.ceil(min_seconds / STEP_S))


def compiles(name, ladder):
    """Return whether a script is compiled. A script outside the ladder counts as compiled."""
    return name not in ladder.scripts or "compile" in ladder.get(name).needs
