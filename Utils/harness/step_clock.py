"""The clock of a run: boundaries between steps, the device's counters, and the number of steps.

A run is a sequence of stretches: consecutive steps between two stops of the clock.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from time import monotonic, time
from typing import NamedTuple

import psutil

from Utils.base.units import MIB
from Utils.device.device import Device
from Utils.harness import ranks, run_record
from Utils.harness.settings import Settings

WARMUP_SHARE = 0.2  # as a share of --min-seconds
WARMUP_TO_WATCH = 3  # shortest warm-up in which gradients are watched: that slows steps 2 and 3


class StepClock:
    """Marks at the boundaries between steps, which are read as times after the run.

    timed: False for each step of warm-up, True for each other step.
    marks: a list of marks for each stretch, one more than the stretch has steps.
    counters: for each stretch with timed steps, the readings before and after these.
    length: steps of the run until its pause. Its launcher or a deadline may cut it.
    before_s: seconds from the start of the process to the first step.
    after_s: seconds that the device works on after the last boundaries of the stretches.
    """

    before_s = after_s = 0.0

    def __init__(self, hardware: Device):
        self.hardware = hardware
        self.timed = []
        self.marks = []
        self.counters = []
        self.length = 0

    def steps(
        self,
        args: Settings,
        watch_gradients: Callable[[], AbstractContextManager],
        pause: Callable[[], None],
        keeps_freed_memory: bool = True,
    ) -> Iterator[None]:
        """Yield while a step runs, and mark the boundaries between steps.

        watch_gradients: returns the context of step 2, which slows step 3 as well.
        pause: called after step --steps, while the clock is stopped.
        keeps_freed_memory: let the process keep freed memory. That slows the last warm-up step.
        """
        self.length = args.steps
        has_long_warmup = args.warmup >= WARMUP_TO_WATCH
        self.before_s = time() - psutil.Process().create_time()
        deadline = args.turn.deadline if args.turn else math.inf
        if args.minutes:
            deadline = monotonic() + 60 * args.minutes
        for steps, warmup in stretches(args, self):
            if len(self.timed) == self.length:
                pause()
            if monotonic() > deadline and any(self.timed):
                break

            # The clock starts.
            before = self._read_counters()
            marks = [self.hardware.mark()]
            self.marks.append(marks)

            for number in range(1, steps + 1):
                step = len(self.timed) + 1
                with watch_gradients() if has_long_warmup and step == 2 else nullcontext():
                    yield
                if keeps_freed_memory and has_long_warmup and step == args.warmup - 1:
                    self.hardware.keep_freed_memory()
                if number == warmup < steps:  # its cost is part of the last warm-up step
                    before = self._read_counters()
                marks.append(self.hardware.mark())
                self.timed.append(number > warmup)

                # After the deadline one more step is timed if none was.
                if monotonic() > deadline and number < steps:
                    if any(self.timed):
                        break
                    if number < warmup:
                        before = self._read_counters()
                        warmup = number

            # The clock stops.
            self.after_s += self.hardware.wait(marks[-1])
            if self.timed[-1]:
                self.counters.append((before, self._read_counters()))

        # The deadline may have cut the run.
        if len(self.timed) < self.length:
            cut = f"cut after {len(self.timed)} of {self.length} steps: out of time"
            args.outcome.notes.append(cut)
            self.length = len(self.timed)

    def _read_counters(self):
        return self.hardware.counters() | {"compiled_graphs": run_record.compiled_graphs()}

    def step_ms(self) -> list[float]:
        """Return the milliseconds of each step. Waits for the device."""
        times = map(self.hardware.elapsed_ms, self.marks)
        return list(itertools.chain.from_iterable(times))

    def counter_growth(self) -> dict[str, float]:
        """Return how much each counter grew over the timed steps, and before_s and after_s.

        beside_cpu_s counts from the first of them to the last, also between stretches.
        """
        names = set.intersection(*map(set, itertools.chain.from_iterable(self.counters)))
        growth = dict.fromkeys(names, 0)
        for start, end in self.counters:
            for name in names:
                growth[name] += end[name] - start[name]

        if "beside_cpu_s" in names:
            first, last = self.counters[0][0], self.counters[-1][1]
            growth["beside_cpu_s"] = last["beside_cpu_s"] - first["beside_cpu_s"]
        return growth | {"before_s": self.before_s, "after_s": self.after_s}


class Stretch(NamedTuple):
    """Consecutive steps between two stops of the clock, beginning with those of warm-up."""

    steps: int
    warmup: int


def stretches(args: Settings, clock: StepClock) -> Iterator[Stretch]:
    """Yield the stretches of a run, until it is complete.

    A run has --steps steps. On a GPU it has more if the timed ones would take less than
    --min-seconds. The pace of the last warm-up step, known before the first timed step, decides how
    many. One stretch ends at step --steps, where all runs compare their losses.
    """
    done = 0
    for stretch in _planned(args, clock):
        before_pause = clock.length - done
        if 0 < before_pause < stretch.steps:
            yield from _split(stretch, before_pause)
        else:
            yield stretch

        done += stretch.steps


def _split(stretch, at):
    """Split a stretch after `at` steps, where the clock stops to measure memory and loss.

    The step after a stop is slow. If it would be timed, a warm-up step is added before it:
    Stretch(10, 0) is split at 4 into Stretch(4, 0) and Stretch(7, 1).
    """
    steps, warmup = stretch
    if warmup <= at:
        return Stretch(at, warmup), Stretch(steps - at + 1, 1)
    return Stretch(at, at), Stretch(steps - at, warmup - at)


def _planned(args, clock):
    """Yield the stretches of a run without the stop at step --steps."""
    one_turn = args.turn and args.steps - args.warmup < 2
    if one_turn or not (args.turn or args.min_seconds):
        yield Stretch(args.steps, args.warmup)
        return

    # The length of the run follows from the pace of the last warm-up step.
    yield Stretch(args.warmup, args.warmup)
    pace_s = clock.step_ms()[-1] / 1e3 if clock.timed else 0.0
    warmup = 0
    timed = args.steps - args.warmup
    if args.min_seconds and pace_s:
        if args.world_size > 1:
            pace_s = max(ranks.gather(pace_s))
        warmup = max(1, math.ceil(args.min_seconds * WARMUP_SHARE / pace_s) - args.warmup)
        timed = max(timed, math.ceil(args.min_seconds / pace_s))

    if not args.turn:
        yield Stretch(warmup + timed, warmup)
        return
    if warmup:
        yield Stretch(warmup, warmup)
    yield from _turns(args, clock, timed, pace_s)


def _turns(args, clock, timed, pace_s):
    """Yield the stretches of a run that takes turns.

    Its launcher decides how long each is, and may shorten the run.

    The first step of a turn is warm-up, since caches hold the data of the runs before.
    """
    peak_mib = args.hardware.peak_memory_mib()
    free_mib = args.hardware.free_memory_bytes / MIB
    while timed > 0:
        steps, most = args.turn.wait(
            left=timed, pace_s=pace_s, peak_mib=peak_mib, free_mib=free_mib
        )
        timed = min(timed, most)
        clock.length = min(clock.length, max(len(clock.timed), args.warmup) + timed)
        steps = min(steps, timed)
        yield Stretch(steps, 1)
        timed -= steps
