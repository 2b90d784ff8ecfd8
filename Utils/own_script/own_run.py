"""One measured run of a training script: the clock of every run, driven by its iterations.

Run.steps yields a batch and marks the boundaries; here the script has the loop, so each end of an
iteration advances a generator from one boundary to the next.
"""

from contextlib import ExitStack
from itertools import pairwise

from Utils.device import device_choice
from Utils.harness import compile_stats, memory_kinds, rank_results, settings, step_schedule
from Utils.harness.step_clock import StepClock
from Utils.own_script.model_calls import device_of, is_sharded, modules_with
from Utils.own_script.switch import Ended

FEWER = 1 / 3  # of the iterations: what happens in fewer is no part of a step
WARMUP_TO_WATCH = 3  # steps of warm-up with room for what slows the step after it


class Trained:
    """The modules and trained parameters of a script, as memory_kinds reads them from a module."""

    def __init__(self, watch):
        modules = modules_with(watch.parameters())
        parameters = [*watch.parameters(), *(p for m in modules for p in m.parameters())]
        self._parameters = list({id(p): p for p in parameters}.values())
        buffers = [buffer for module in modules for buffer in module.buffers()]
        self._buffers = list({id(b): b for b in buffers}.values())

    def parameters(self):
        return self._parameters

    def buffers(self):
        return self._buffers


class OwnRun:
    """Steps of a script. args: of `measured_process.settings`. watch: a Watch, once it is made."""

    def __init__(self, args):
        self.args = args
        self.watch = None
        self.hardware = None
        self.clock = None
        self.result = None  # (rows, record) after the last step

    def begins(self):
        """Start the clock before the first model call, backward or optimizer step."""
        if self.hardware is not None or self.result:
            return
        parameters = self.watch.parameters()
        if not parameters:
            return
        device = device_of(parameters)
        if device is None:
            raise Ended("refused", "trains on several devices")
        self.hardware = self.args.hardware = device_choice.of_tensors(device)
        if self.args.min_seconds == "auto":
            self.args.min_seconds = settings.shortest_s(device)
        self._start()

    def _start(self):
        self.changes = self.watch.iterations.changes
        self.clock = StepClock(self.hardware)
        self.iterations = []
        self.graphs = []  # compiled by the end of each
        self.memory = None
        self.gradients = None
        self.hardware.reset_peak_memory()
        self.boundaries = self._boundaries()
        next(self.boundaries)

    def iteration_ended(self, iteration):
        """Mark a step's end. The last one ends the script by Ended."""
        if self.result:  # the script caught it
            raise Ended
        if self.watch.iterations.changes != self.changes:  # an iteration is now another thing
            self._start()
            return
        self.iterations.append(iteration)
        self.graphs.append(compile_stats.compiled_graphs())
        if next(self.boundaries, "complete") == "complete":
            self.result = self._combined()
            raise Ended

    def _boundaries(self):
        """Yield while a step runs; mark the boundaries, as Run.steps does."""
        args = self.args
        clock = self.clock
        for steps, warmup in step_schedule.stretches(args, clock):
            if len(clock.timed) == args.steps:
                self._measure_memory()
            if not warmup:
                clock.count()
            clock.start()
            for number in range(1, steps + 1):
                with self._watched():
                    yield
                if len(clock.timed) == args.warmup - 1 and args.warmup >= WARMUP_TO_WATCH:
                    self.hardware.keep_freed_memory(grows=True)
                if number == warmup < steps:  # its cost is part of the last warm-up step
                    clock.count()
                clock.step(timed=number > warmup)
            clock.stop()

    def _watched(self):
        """Watch gradients in the second step; that slows the next one, which is warm-up too."""
        second = len(self.clock.timed) == 1 and self.args.warmup >= WARMUP_TO_WATCH
        if not second:
            return ExitStack()
        self.gradients = memory_kinds.GradientWatch(Trained(self.watch))
        return self.gradients

    def _measure_memory(self):
        trained = Trained(self.watch)
        peak = self.gradients and self.gradients.peak
        optimizers = list(self.watch.optimizers.values())
        self.memory = memory_kinds.memory(self.hardware, trained, optimizers, peak)

    def _combined(self):
        """Return (rows, record)."""
        args = self.args
        watch = self.watch
        if any(map(is_sharded, modules_with(watch.parameters()))):
            raise Ended("refused", "trains on several devices or ranks")
        if self.memory is None:  # no step after --steps
            self._measure_memory()
        trained = Trained(watch)
        optimizers = list(watch.optimizers.values())
        before, after = self.clock.counter_sums()
        losses = [sum(map(float, iteration.losses)) for iteration in self.iterations]
        timed = self._timed()
        measured = rank_results.RankResult(
            step_ms=self.clock.step_ms(),
            data_ms=[iteration.data_s * 1e3 for iteration in self.iterations],
            timed=timed,
            losses=losses,
            held_out_loss=None,
            memory=self.memory,
            counters_before=before,
            counters_after=after,
            readings=self.hardware.readings(),
            compiled_late=args.warmup > 0 and self._compiled_late(timed),
            updated=memory_kinds.updated(trained, optimizers),
            node="",
            device=self.hardware.name,
            other_processes=list(self.hardware.other_processes),
        )
        self._settle_batch()
        args.version = args.version_of(args.spec)
        commit, dash, dirty = args.spec["commit"].partition("-")
        args.commit = f"{commit}+{args.version}{dash}{dirty}"
        if watch.own_seed is not None:
            args.seed = watch.own_seed
        flop = args.flop and args.flop / args.batch_size
        rows, record = rank_results.combine(args, [measured], trained, optimizers, {}, flop)
        if not any(iteration.losses for iteration in self.iterations):
            rows = [row | {"loss": None} for row in rows]
        return rows, record

    def _timed(self):
        """Return which steps are timed: none in which something happened that is no part of one."""
        counts = {}
        for iteration in self.iterations:
            for event in iteration.events:
                counts[event] = counts.get(event, 0) + 1
        rare = {event for event in counts if counts[event] < FEWER * len(self.iterations)}
        timed = []
        left_out = 0
        for was_timed, iteration in zip(self.clock.timed, self.iterations, strict=True):
            usual = not rare & iteration.events
            left_out += was_timed and not usual
            timed.append(was_timed and usual)
        if not any(timed):
            raise Ended("refused", "each timed step holds a validation, or the like; raise STEPS")
        if left_out:
            steps = "step" if left_out == 1 else "steps"
            self.args.notes.append(f"{left_out} {steps} with validation or the like left out")
        return timed

    def _compiled_late(self, timed):
        compiled = [now > before for before, now in pairwise([0, *self.graphs])]
        return any(late and is_timed for late, is_timed in zip(compiled, timed, strict=True))

    def _settle_batch(self):
        """Set the batch of the settings to the samples of the usual step."""
        samples = sorted(iteration.samples for iteration in self.iterations[1:])
        usual = samples[len(samples) // 2] if samples else 0
        args = self.args
        args.unit = "samples" if usual else "steps"
        args.batch_size = args.requested_batch_size = usual or 1
