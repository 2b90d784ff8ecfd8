"""The clock of a run: step boundaries, the device's counters around the timed steps, how many steps
there are.

Steps come in stretches: consecutive steps between two stops of the clock.
"""

import itertools
import math
from contextlib import nullcontext

from Utils.base.units import MIB
from Utils.harness import ranks, run_record

WARMUP_SHARE = 0.2  # of min_seconds
WARMUP_TO_WATCH = 3  # steps of warm-up with room for what slows the step after it


class StepClock:
    """Marks at step boundaries, read as times after the run.

    hardware: device whose clock and counters are read. timed: one bool per step, False for warm-up.
    """

    def __init__(self, hardware):
        self.hardware = hardware
        self.timed = []
        self.marks = []  # a list of marks for each stretch
        self.counters = []  # before and after the timed steps of each stretch that has some

    def steps(self, args, watch_gradients, pause, keeps_freed_memory=True):
        """Yield while a step runs, and mark the boundaries between steps.

        watch_gradients: function that returns the context of the second step; it slows the next
        one, which is warm-up too. pause: called after step --steps, while the clock is stopped.
        keeps_freed_memory: let the process do so, which slows the last step of warm-up.
        """
        room = args.warmup >= WARMUP_TO_WATCH
        for steps, warmup in stretches(args, self):
            if len(self.timed) == args.steps:
                pause()
            before = self._read_counters()
            marks = [self.hardware.mark()]
            self.marks.append(marks)
            for number in range(1, steps + 1):
                step = len(self.timed) + 1
                with watch_gradients() if room and step == 2 else nullcontext():
                    yield
                if keeps_freed_memory and room and step == args.warmup - 1:
                    self.hardware.keep_freed_memory()
                if number == warmup < steps:  # its cost is part of the last warm-up step
                    before = self._read_counters()
                marks.append(self.hardware.mark())
                self.timed.append(number > warmup)
            self.hardware.elapsed_ms(marks[-1:])  # waits for the device
            if steps > warmup:
                self.counters.append((before, self._read_counters()))

    def _read_counters(self):
        return self.hardware.counters() | {"compiled_graphs": run_record.compiled_graphs()}

    def step_ms(self):
        """Return the milliseconds of each step."""
        return [ms for marks in self.marks for ms in self.hardware.elapsed_ms(marks)]

    def counter_growth(self):
        """Return how much each counter grew over the timed steps, a dict."""
        pairs = self.counters
        names = set(pairs[0][0]).intersection(*itertools.chain.from_iterable(pairs))
        return {name: sum(end[name] - start[name] for start, end in pairs) for name in names}


def stretches(args, clock):
    """Yield (steps, warm-up steps at its start) of each stretch of a run, until it is complete.

    A run has --steps steps. On a GPU it has more where they would last less than --min-seconds: its
    length follows from the last warm-up step, before the first timed step. A run that takes turns
    gets each stretch from its launcher, and its first step is warm-up, since caches hold the data
    of others. One stretch ends at step --steps, where losses are compared.

    args: Settings. clock: the run's StepClock.
    """
    done = 0
    for steps, warmup in _planned(args, clock):
        before = args.steps - done
        if 0 < before < steps:
            yield before, min(warmup, before)
            more = int(warmup <= before)  # a step in place of the one that follows the pause
            yield steps - before + more, max(0, warmup - before) + more
        else:
            yield steps, warmup
        done += steps


def _planned(args, clock):
    if not args.turn and not args.min_seconds:
        yield args.steps, args.warmup
        return
    yield args.warmup, args.warmup
    pace_s = clock.step_ms()[-1] / 1e3 if clock.timed else 0.0  # waits for the device
    warmup = 0
    timed = args.steps - args.warmup
    if args.min_seconds and pace_s:
        pace_s = max(ranks.gather(pace_s)) if args.world_size > 1 else pace_s
        warmup = max(1, math.ceil(args.min_seconds * WARMUP_SHARE / pace_s) - args.warmup)
        timed = max(timed, math.ceil(args.min_seconds / pace_s))
    if not args.turn:
        yield warmup + timed, warmup
        return
    if warmup:
        yield warmup, warmup
    peak_mib = args.hardware.peak_memory_mib()
    free_mib = args.hardware.free_memory_bytes / MIB
    while timed > 0:
        granted = args.turn.wait(left=timed, pace_s=pace_s, peak_mib=peak_mib, free_mib=free_mib)
        steps = min(granted, timed)
        yield steps, 1
        timed -= steps
