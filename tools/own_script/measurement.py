"""The measured steps of a user's script, and their rows and record.

The clock is the same as in all runs. The end of an iteration advances it to the next boundary.
"""

from collections import Counter
from itertools import chain
from statistics import median, median_high, median_low
from types import SimpleNamespace

import numpy as np
import torch

from tools.own_script import models
from tools.own_script.changes import edits_of
from tools.own_script.optimizer_steps import NEW_OPTIMIZER
from tools.own_script.profiled_steps import ProfiledSteps
from tools.own_script.switches import CONVOLUTION
from tools.own_script.user_code import Ended, digest_of, sources_of, version
from Utils.base.text import plural
from Utils.harness import memory_kinds, run_record, step_work
from Utils.harness.step_clock import StepClock


class Measurement:
    """Steps of a script under a Watch, from the first one on. args: with needs and hardware."""

    memory = None

    def __init__(self, args, watch):
        self.args = args
        self.watch = watch
        self.iterations = []
        self.graphs = [0]  # number of compiled graphs at the end of each iteration
        self.gradients = WatchedGradients(self._trained(), watch.observe)

        hardware = args.hardware
        hardware.reset_peak_memory()
        self.clock = StepClock(hardware)
        # malloc keeps its settings, so that times are those of plain Python.
        self.boundaries = self.clock.steps(
            args, lambda: self.gradients, self._measure_memory, keeps_freed_memory=False
        )
        if args.spec.trace:
            self.profiled = ProfiledSteps()
            self.boundaries = chain(self.boundaries, self.profiled.boundaries(hardware))
        next(self.boundaries)

    def step_ended(self, iteration):
        """Mark the end of a step. Return whether it was the last one."""
        self.iterations.append(iteration)
        self.graphs.append(run_record.compiled_graphs())
        return next(self.boundaries, "complete") == "complete"

    def _trained(self):
        """Return the parameters and buffers that are trained, with a module's methods."""
        optimized = self.watch.parameters()
        modules = torch.nn.ModuleList(models.modules_with(optimized))
        parameters = list(dict.fromkeys([*optimized, *modules.parameters()]))
        return SimpleNamespace(parameters=lambda: parameters, buffers=modules.buffers)

    def _measure_memory(self):
        is_measured = "memory of gradients" not in self.watch.failures
        gradients = self.gradients.peak if is_measured else None
        self.memory = memory_kinds.memory_by_kind(
            self.args.hardware, self._trained(), self.watch.steps.optimizers, gradients
        )

    def rows_and_record(self, products, notes):
        """Return (rows, record) of the run. Raises Ended if no step can be timed.

        products: Counters of matrix products of this run and of its base. notes: for its rows.
        """
        watch = self.watch
        if self.memory is None:  # the script ended with the last step
            self._measure_memory()
        iterations = self.iterations
        del iterations[len(self.clock.timed) :]  # iterations under the profiler
        trained = self._trained()
        optimizers = watch.steps.optimizers

        # The measurement, as that of a rank.
        timed = self._timed()
        graphs = np.diff(self.graphs)[: len(timed)][timed]
        hardware = self.args.hardware
        measured = run_record.RankResult(
            step_ms=self.clock.step_ms(),
            data_ms=[iteration.data_s * 1e3 for iteration in iterations],
            timed=timed,
            losses=[sum(map(float, iteration.losses)) for iteration in iterations],
            memory=self.memory,
            counters=self.clock.counter_growth() | {"compiled_graphs": int(graphs.sum())},
            readings=hardware.readings(),
            updated=memory_kinds.updated(trained, optimizers),
            other_processes=list(hardware.other_processes),
            steps=self.clock.length,
        )

        # The type that most matrix products have in this run, otherwise in its base.
        counts = products[0] or products[1] or {}
        kind = max(counts, key=counts.get, default=CONVOLUTION)
        if kind == CONVOLUTION:
            kind = "float32"
        needs = [kind] if products[0] else [kind, *self.args.needs]
        args = self.args.replace(needs=needs, **self._columns())
        flop = args.spec.inspection.flop / args.batch_size or None
        args.outcome.notes += [*watch.failures.values(), *notes]
        rows, record = run_record.combine(args, [measured], trained, optimizers, {}, flop)

        # Without a need, products in another type have no ceiling.
        if kind != "float32" and step_work.precision_of(needs) == "float32":
            record["limits"] |= {"precision": kind, "datasheet_tflops": None}
        loss_counts = [len(iteration.losses) for iteration in iterations]
        if not any(loss_counts) or "losses" in watch.failures:
            rows = [row | {"loss": None} for row in rows]
        record["own_script"] = {
            "models": [[model.name, str(model.place)] for model in watch.models.seen],
            "optimizers": [[name, str(place)] for name, place in optimizers.values()],
            "losses_per_step": median_low(loss_counts),
            "settings": args.spec.settings,
            "file": args.spec.file,
        }
        watch.observe("places", self._add_edits, record["own_script"])
        return rows, record

    def _add_edits(self, own_script):
        """Add the edits of the script that do what its switches do, and digests of its files."""
        spots = self.args.spec.inspection.spots
        edits = {switch.name: edits_of(switch, spots) for switch in self.watch.switches}
        edited = {edit.file for of_switch, _ in edits.values() for edit in of_switch}
        sources = sorted(edited.union(sources_of(self.args.spec)))
        own_script["edits"] = edits
        own_script["sources"] = {file: digest_of(file) for file in sources}

    def _timed(self):
        """Return whether each step is timed. A step with a rare event, as a validation, is not."""
        counts = Counter(event for iteration in self.iterations for event in iteration.events)
        rare = {event for event in counts if counts[event] < len(self.iterations) / 3}
        if self.watch.switches and NEW_OPTIMIZER in counts.keys() - rare:
            reason = "optimizers are made every few steps; finding their models takes longer"
            raise Ended(reason, "unsupported")

        timed = [
            is_timed and not rare & iteration.events
            for is_timed, iteration in zip(self.clock.timed, self.iterations, strict=True)
        ]
        if not any(timed):
            raise Ended("every timed step also ran a validation; increase STEPS")
        left_out = sum(self.clock.timed) - sum(timed)
        if left_out:
            steps = plural(left_out, "step")
            self.args.outcome.notes.append(f"{steps} with validation or the like left out")
        return timed

    def _columns(self):
        """Return columns of the rows: the script's batch, version and seed."""
        spec = self.args.spec
        first, *later = [iteration.samples for iteration in self.iterations]
        samples = 0
        if any(later):  # steps without a batch repeat one, as with itertools.cycle
            samples = median_high(filter(None, [first, *later]))

        commit, dash, dirty = spec.commit.partition("-")
        columns = {
            "unit": "samples" if samples else "steps",
            "requested_batch_size": samples or 1,
            "commit": f"{commit}+{version(spec)}{dash}{dirty}",
            **spec.columns,
        }
        columns["batch_size"] = samples or columns.get("batch_size", 1)
        if self.watch.own_seed is not None:
            columns["seed"] = self.watch.own_seed
        return columns

    def profile(self, rows):
        """Write the trace of the steps under the profiler. Return what it needs to be read."""
        self.profiled.profile.export_chrome_trace(self.args.spec.trace)
        return {
            "timed_median_ms": median(row["step_ms"] for row in rows if row["phase"] == "timed"),
            "clock_ms": self.profiled.clock_ms,
        }


class WatchedGradients(memory_kinds.GradientWatch):
    """A GradientWatch that an unusual gradient switches off. peak is None if none was seen."""

    is_on = False

    def __init__(self, model, observe):
        super().__init__(model)
        self.observe = observe

    def __enter__(self):
        super().__enter__()
        self.is_on = True

    def __exit__(self, *error):
        super().__exit__()
        self.is_on = False
        self.peak = self.peak or None

    def measure(self):
        """Measure gradients that no backward has made, or of parameters that were frozen."""
        complete = [p for p in self.parameters if p.grad is not None]
        if self.is_on and complete:
            self._measure(complete[0])

    def _measure(self, complete):
        self.observe("memory of gradients", super()._measure, complete)
