"""One measured run of a training script: the clock of every run, driven by its iterations.

Run.steps yields a batch and marks the boundaries; here the script has the loop, so each end of an
iteration advances a generator from one boundary to the next.
"""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import torch

from Utils.base.errors import Unsupported
from Utils.base.text import plural
from Utils.device import capabilities, device_choice
from Utils.harness import compile_stats, memory_kinds, rank_results, settings
from Utils.harness.step_clock import StepClock
from Utils.own_script.model_calls import modules_with
from Utils.own_script.user_code import Ended, version

FEWER = 1 / 3  # of the iterations: what happens in fewer is no part of a step
SHARDED = ("FullyShardedDataParallel", "FSDP", "DeepSpeedEngine")  # how names of classes begin


class OwnRun:
    """Steps of a script. args: of `measured_process.settings`. watch: a Watch, once it is made."""

    def __init__(self, args):
        self.args = args
        self.watch = None
        self.hardware = None
        self.result = None  # (rows, record) after the last step

    def begins(self):
        """Start the clock before the first model call, backward or optimizer step."""
        if self.hardware is not None:
            return
        devices = {p.device for p in self.watch.parameters()}
        if not devices:
            return
        if len(devices) > 1:
            raise Ended("refused", "trains on several devices")
        ranks = torch.distributed
        if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
            raise Ended("refused", "trains on several ranks")
        args = self.args
        (device,) = devices
        self.hardware = args.hardware = device_choice.of_tensors(device)
        try:
            limits = [capabilities.check(need, self.hardware) for need in args.needs]
        except Unsupported as problem:
            raise Ended("unsupported", str(problem)) from None
        args.notes += filter(None, limits)
        if args.min_seconds == "auto":
            args.min_seconds = settings.shortest_s(device)
        self._start()

    def _start(self):
        self.changes = self.watch.iterations.changes
        self.clock = StepClock(self.hardware)
        self.iterations = []
        self.graphs = [0]  # compiled by the end of each
        self.memory = None
        self.gradients = None
        self.hardware.reset_peak_memory()
        # Later iterations may need more memory than the warm-up.
        self.boundaries = self.clock.steps(
            self.args, self._watch_gradients, self._measure_memory, grows=True
        )
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

    def _watch_gradients(self):
        self.gradients = memory_kinds.GradientWatch(self._trained())
        return self.gradients

    def _trained(self):
        """Return the modules that are trained, as memory_kinds reads them from a module."""
        of_optimizers = self.watch.parameters()
        modules = torch.nn.ModuleList(modules_with(of_optimizers))
        parameters = list(dict.fromkeys([*of_optimizers, *modules.parameters()]))
        buffers = list(modules.buffers())
        return SimpleNamespace(parameters=lambda: parameters, buffers=lambda: buffers)

    def _measure_memory(self):
        peak = self.gradients and self.gradients.peak
        optimizers = self.watch.optimizers
        self.memory = memory_kinds.memory(self.hardware, self._trained(), optimizers, peak)

    def _combined(self):
        """Return (rows, record)."""
        args = self.args
        watch = self.watch
        for module in modules_with(watch.parameters()):
            parallel = isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1
            if parallel or type(module).__name__.startswith(SHARDED):
                raise Ended("refused", "trains on several devices or ranks")
        if self.memory is None:  # no step after --steps
            self._measure_memory()
        timed = self._timed()
        steps = zip(pairwise(self.graphs), timed, strict=True)
        late = any(after > before for (before, after), is_timed in steps if is_timed)
        trained = self._trained()
        before, after = self.clock.counter_sums()
        measured = rank_results.RankResult(
            step_ms=self.clock.step_ms(),
            data_ms=[iteration.data_s * 1e3 for iteration in self.iterations],
            timed=timed,
            losses=[sum(map(float, iteration.losses)) for iteration in self.iterations],
            held_out_loss=None,
            memory=self.memory,
            counters_before=before,
            counters_after=after,
            readings=self.hardware.readings(),
            compiled_late=args.warmup > 0 and late,
            updated=memory_kinds.updated(trained, watch.optimizers),
            node="",
            device=self.hardware.name,
            other_processes=list(self.hardware.other_processes),
        )
        samples = sorted(iteration.samples for iteration in self.iterations[1:])
        usual = samples[len(samples) // 2] if samples else 0
        args.unit = "samples" if usual else "steps"
        args.batch_size = args.requested_batch_size = usual or 1
        args.version = version(args.spec)
        commit, dash, dirty = args.spec["commit"].partition("-")
        args.commit = f"{commit}+{args.version}{dash}{dirty}"
        if watch.own_seed is not None:
            args.seed = watch.own_seed
        flop = args.spec["flop"] and args.spec["flop"] / args.batch_size
        rows, record = rank_results.combine(args, [measured], trained, watch.optimizers, {}, flop)
        if not any(iteration.losses for iteration in self.iterations):
            rows = [row | {"loss": None} for row in rows]
        return rows, record

    def _timed(self):
        """Return which steps are timed: none in which something happened that is no part of one."""
        counts = Counter(event for iteration in self.iterations for event in iteration.events)
        rare = {event for event in counts if counts[event] < FEWER * len(self.iterations)}
        usual = [not rare & iteration.events for iteration in self.iterations]
        timed = [all(conditions) for conditions in zip(self.clock.timed, usual, strict=True)]
        if not any(timed):
            raise Ended("refused", "each timed step holds a validation, or the like; raise STEPS")
        if left_out := sum(self.clock.timed) - sum(timed):
            steps = plural(left_out, "step")
            self.args.notes.append(f"{steps} with validation or the like left out")
        return timed
