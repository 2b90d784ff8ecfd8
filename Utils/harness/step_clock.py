"""The clock of a run: step boundaries, and the device's counters around the timed steps.

Steps come in stretches: consecutive steps between two stops of the clock.
"""

from Utils.harness import compile_stats


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
