"""The clock of a run: step boundaries, and the device's counters around the timed steps.

Steps come in stretches: consecutive steps between two stops of the clock.
"""

from contextlib import nullcontext

from Utils.harness import compile_stats, step_schedule

WARMUP_TO_WATCH = 3  # steps of warm-up with room for what slows the step after it


class StepClock:
    """Marks at step boundaries, read as times after the run.

    hardware: device whose clock and counters are read. timed: one bool per step, False for warm-up.
    """

    def __init__(self, hardware):
        self.hardware = hardware
        self.timed = []
        self.marks = []  # a list of marks for each stretch
        self.counters = []  # for each stretch with timed steps, before and after them
        self.compiled = None  # compiled graphs when the first timed step began

    def steps(self, args, watch_gradients, pause, grows=False):
        """Yield while a step runs, and mark the boundaries between steps.

        watch_gradients: function that returns the context of the second step; it slows the next
        one, which is warm-up too. pause: called after step --steps, while the clock is stopped.
        grows: as for `keep_freed_memory` of the hardware, which slows the last step of warm-up.
        """
        room = args.warmup >= WARMUP_TO_WATCH
        for steps, warmup in step_schedule.stretches(args, self):
            if len(self.timed) == args.steps:
                pause()
            if not warmup:
                self.count()
            self.start()
            for number in range(1, steps + 1):
                step = len(self.timed) + 1
                with watch_gradients() if room and step == 2 else nullcontext():
                    yield
                if room and step == args.warmup - 1:
                    self.hardware.keep_freed_memory(grows)
                if number == warmup < steps:  # its cost is part of the last warm-up step
                    self.count()
                self.step(timed=number > warmup)
            self.stop()

    def start(self):
        """Begin a stretch."""
        self.marks.append([self.hardware.mark()])

    def count(self):
        """Count the steps from here to the end of the stretch as timed."""
        self.counters.append([self.hardware.counters()])
        if self.compiled is None:
            self.compiled = compile_stats.compiled_graphs()

    def step(self, timed):
        """Mark the end of a step."""
        self.marks[-1].append(self.hardware.mark())
        self.timed.append(timed)

    def stop(self):
        """End the stretch: wait for the device, and read the counters if steps were timed."""
        self.hardware.elapsed_ms(self.marks[-1][-1:])
        if self.counters and len(self.counters[-1]) == 1:
            self.counters[-1].append(self.hardware.counters())

    def pace_s(self):
        """Return the seconds of the last step so far, waiting for the device; 0 for none."""
        times = self.hardware.elapsed_ms(self.marks[-1])
        return times[-1] / 1e3 if times else 0.0

    def step_ms(self):
        """Return the milliseconds of each step."""
        return [ms for marks in self.marks for ms in self.hardware.elapsed_ms(marks)]

    def counter_sums(self):
        """Return the counters before and after the timed steps, each summed over the stretches."""
        readings = [reading for pair in self.counters for reading in pair]
        names = set(readings[0]).intersection(*readings)
        before = {name: sum(start[name] for start, _ in self.counters) for name in names}
        after = {name: sum(end[name] for _, end in self.counters) for name in names}
        return before, after

    def compiled_late(self):
        """Return whether a graph was compiled in a timed step."""
        return compile_stats.compiled_graphs() > self.compiled
