"""One run of a user's training script under a Watch: its steps and its rows.

The clock is the same as in all runs. The end of an iteration advances it to the next boundary.
"""

import json
import multiprocessing
import os
import random
import runpy
import sys
import threading
import traceback
from collections import Counter
from contextlib import redirect_stderr
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median, median_high
from types import SimpleNamespace

import numpy as np
import torch

from tools.own_script import look, missing_import, model_calls, user_code, write_guard
from tools.own_script.faults import fault, is_fault_of_ours
from tools.own_script.model_switches import TorchCompile
from tools.own_script.profiled_steps import ALL_PROFILED, ProfiledSteps
from tools.own_script.switches import CONVOLUTION, SWITCHES
from tools.own_script.unwatched import unwatched
from tools.own_script.user_code import CAUSES, Ended, version
from tools.own_script.watch import Watch
from tools.own_script.watched_gradients import WatchedGradients
from Utils.base import files
from Utils.base.errors import UserError, first_line, say
from Utils.base.text import plural
from Utils.device import device_choice, measured_ceilings
from Utils.harness import memory_kinds, run_record, settings, step_work
from Utils.harness.step_clock import StepClock
from Utils.results import rows_file

SHARDED = ("FullyShardedDataParallel", "FSDP", "DeepSpeedEngine")  # prefixes of class names
EXIT = os._exit  # a script may replace it, as those of this repository do
MOST_BACKWARDS = 100  # without an optimizer
NO_STEP = "ends without a step of a torch.optim.Optimizer"
ELSEWHERE = (  # by Watch.steps_elsewhere
    NO_STEP,
    "its optimizer steps in other threads; only those of the main thread are measured",
    "its optimizer steps in processes that it starts; only those of the first are measured",
    f"{NO_STEP} in this process; it starts others, whose steps are not measured",
)


class Measured:
    """One run of a script. args: from `settings_of`."""

    def __init__(self, args):
        self.args = args
        self.spec = args.spec
        self.hardware = None
        # The script's output goes elsewhere.
        self.terminal = os.fdopen(os.dup(2), "w", errors="backslashreplace")
        self.end = None  # the first Ended, of which there are rows or a line
        self.watch = Watch(self.spec, self.begins, self.iteration_ended, args.look)
        first = 2 if args.look else 1
        self.look = look.Look(self.watch, first if first < args.warmup else None)
        self.guard = write_guard.WriteGuard(self.spec, partial(self.watch.note, "a file written"))

        switches = [SWITCHES[name](self.watch) for name in args.switches]
        self.needs = [need for switch in switches for need in switch.needs]
        # torch.compile comes first, so that autocast is around the compiled model.
        self.watch.switches = sorted(switches, key=lambda s: not isinstance(s, TorchCompile))
        if self.spec.get("random_samples") and "prefetching_loader" in args.switches:
            args.outcome.notes.append("other samples: workers draw them with other random numbers")

    def run_script(self):
        """Run the script. Return how it ended, an Ended."""
        # Replace torch's functions, and enable the switches.
        spec = self.spec
        self.watch.install()
        if self.args.look:
            self.look.install()
        for switch in self.watch.switches:
            switch.start()

        with unwatched:
            random.seed(self.args.seed)
            np.random.seed(self.args.seed % 2**32)
            torch.manual_seed(self.args.seed)
        self.guard.install()

        sys.argv = [spec["script"], *spec["arguments"]]
        sys.path.insert(0, spec["folder"] if spec["is_module"] else str(Path(spec["file"]).parent))
        try:
            if spec["is_module"]:
                runpy.run_module(spec["script"], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(spec["script"], run_name="__main__")
        except Ended as end:
            return end
        except BaseException as error:
            if not isinstance(error, SystemExit) or error.code not in (None, 0):
                return self.end or self._after_error(error)

        if self.end or self.guard.refused:
            return self.end or Ended(self.guard.refused)
        steps = self.watch.ended_iterations
        if not steps:
            return Ended(ELSEWHERE[self.watch.steps_elsewhere[0]])
        remedy = "let it train longer, by ARGS"
        needed = self.args.steps
        if not self.args.look:
            remedy += ", or set STEPS lower"
        if self.args.trace:
            needed += ALL_PROFILED
        return Ended(f"ends after {steps} steps of {needed}; {remedy}")

    def _after_error(self, error):
        """Return the Ended of a script that ended by an exception."""
        if isinstance(error, SystemExit):
            sys.stderr.flush()
            output = Path(self.spec["output"]).read_text(errors="replace").strip()
            last_line = error.code if isinstance(error.code, str) else output.rpartition("\n")[2]
            return Ended(f"ends early: {last_line or 'it says nothing'}")

        traceback.print_exception(error)
        if device_choice.is_out_of_memory(error):
            return Ended("make its batch smaller", "out_of_memory")

        # Any other error, with the line of the script that it came from.
        reason = f"{type(error).__name__}: {user_code.first_sentence(error)}"
        if is_fault_of_ours(error):
            return fault(error)
        for site in reversed(traceback.extract_tb(error.__traceback__)):
            if site.filename.startswith(self.spec["folder"]):
                reason += f" ({Path(site.filename).name}:{site.lineno})"
                break

        if isinstance(error, ModuleNotFoundError) and error.name:
            return Ended(missing_import.sentence(error.name, self.spec))
        causes = [cause for words, cause in CAUSES.items() if words in str(error)]
        if self.watch.switches:
            return Ended("; ".join(["the script raises " + reason, *causes]), "unsupported")
        return Ended(reason)

    @unwatched
    def begins(self):
        """Start the clock before the first model call, backward or optimizer step."""
        parameters = self.watch.parameters()
        self.watch.observe("begin of a step", self.look.begin_or_end)
        if not parameters and self.watch.backwards >= MOST_BACKWARDS:
            reason = f"has made no torch.optim.Optimizer by its {MOST_BACKWARDS}th backward"
            raise Ended(reason)
        if self.hardware or not parameters:
            return

        # Refuse a script that trains on several devices or ranks.
        device = parameters[0].device
        ranks = torch.distributed
        several = ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
        several |= any(p.device != device for p in parameters)
        for module in model_calls.modules_with(parameters):
            several |= type(module).__name__.startswith(SHARDED)
            several |= isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1
        if several:
            raise Ended("trains on several devices or ranks")

        args = self.args
        # This process has a context by now, by which a container's NVML may not know it.
        partners = {os.getpid(), *(args.turn.partners() if args.turn else ())}
        self.hardware = look.of_tensors(device, partners)
        min_seconds = args.min_seconds
        if min_seconds == "auto":
            min_seconds = 0.0 if device.type == "cpu" else settings.SECONDS_ON_GPU
        self.args = args.replace(hardware=self.hardware, min_seconds=min_seconds, needs=self.needs)
        settings.check_needs(self.args)
        self._start()

    def _start(self):
        """Start the clock, at the first iteration or when another optimizer ends iterations."""
        self.changes = self.watch.iterations.changes
        self.clock = StepClock(self.hardware)
        self.iterations = []
        self.graphs = [0]  # number of compiled graphs at the end of each iteration
        self.memory = None
        self.gradients = WatchedGradients(self._trained(), self.watch.observe)

        self.hardware.reset_peak_memory()
        # malloc keeps its settings, so that times are those of plain Python.
        self.boundaries = self.clock.steps(
            self.args, lambda: self.gradients, self._measure_memory, keeps_freed_memory=False
        )
        if self.args.trace:
            self.profiled = ProfiledSteps()
            self.boundaries = chain(self.boundaries, self.profiled.boundaries(self.hardware))
        next(self.boundaries)

    @unwatched
    def iteration_ended(self, iteration):
        """Mark the end of a step. The last one raises Ended, which ends the script."""
        if self.end:  # the script has caught Ended
            self.end_process()
        if self.guard.refused:
            raise Ended(self.guard.refused)
        self.watch.observe("begin of a step", self.look.begin_or_end)
        if self.watch.iterations.changes != self.changes:  # another optimizer ends iterations
            self._start()
            return

        self.iterations.append(iteration)
        self.graphs.append(run_record.compiled_graphs())
        try:
            is_last = next(self.boundaries, "complete") == "complete"
        except KeyboardInterrupt:  # the launcher has ended; a bare except could catch it
            self.end_process(130)
        if is_last:
            self.append(Ended("", "ok"))
            raise self.end

    def _trained(self):
        """Return the parameters and buffers that are trained, with a module's methods."""
        optimized = self.watch.parameters()
        modules = torch.nn.ModuleList(model_calls.modules_with(optimized))
        parameters = list(dict.fromkeys([*optimized, *modules.parameters()]))
        return SimpleNamespace(parameters=lambda: parameters, buffers=modules.buffers)

    def _measure_memory(self):
        is_measured = "memory of gradients" not in self.watch.failures
        gradients = self.gradients.peak if is_measured else None
        self.memory = memory_kinds.memory_by_kind(
            self.hardware, self._trained(), self.watch.optimizers, gradients
        )

    def _combined(self):
        """Return (rows, record) of the run. Raises Ended if no step can be timed."""
        # The measurement, as of a rank.
        watch = self.watch
        if self.memory is None:  # the script ended with the last step
            self._measure_memory()
        del self.iterations[len(self.clock.timed) :]  # iterations under the profiler
        timed = self._timed()

        graphs = np.diff(self.graphs)[: len(timed)]
        trained = self._trained()
        measured = run_record.RankResult(
            step_ms=self.clock.step_ms(),
            data_ms=[iteration.data_s * 1e3 for iteration in self.iterations],
            timed=timed,
            losses=[sum(map(float, iteration.losses)) for iteration in self.iterations],
            memory=self.memory,
            counters=self.clock.counter_growth() | {"compiled_graphs": int(graphs[timed].sum())},
            readings=self.hardware.readings(),
            updated=memory_kinds.updated(trained, watch.optimizers),
            other_processes=list(self.hardware.other_processes),
            steps=self.clock.length,
        )

        # The script's batch, version and seed.
        samples = median_high([iteration.samples for iteration in self.iterations[1:]] or [0])
        commit, dash, dirty = self.spec["commit"].partition("-")
        columns = {
            "unit": "samples" if samples else "steps",
            "requested_batch_size": samples or 1,
            "commit": f"{commit}+{version(self.spec)}{dash}{dirty}",
            **self.spec["columns"],
        }
        columns["batch_size"] = samples or columns.get("batch_size", 1)
        if watch.own_seed is not None:
            columns["seed"] = watch.own_seed

        # The type of matrix products that most of them have; without those of this run, the base's
        # unless a switch has set it.
        products, base_products = self._products()
        counts = products or base_products or {}
        kind = max(counts, key=counts.get, default=CONVOLUTION)
        kind = "float32" if kind == CONVOLUTION else kind
        needs = [kind] if products else [kind, *self.needs]

        args = self.args.replace(needs=needs, **columns)
        flop = self.spec.get("flop", 0) / args.batch_size or None
        args.outcome.notes += [*watch.failures.values(), *self.guard.notes]
        rows, record = run_record.combine(args, [measured], trained, watch.optimizers, {}, flop)
        # Without a need, products in another type have no ceiling.
        if kind != "float32" and step_work.precision_of(needs) == "float32":
            record["limits"] |= {"precision": kind, "datasheet_tflops": None}
        loss_counts = [len(iteration.losses) for iteration in self.iterations]
        if not any(loss_counts) or "losses" in watch.failures:
            rows = [row | {"loss": None} for row in rows]
        record["own_script"] = {
            "models": [[model.name, model.site] for model in watch.models],
            "optimizers": list(watch.optimizer_sites.values()),
            "losses_per_step": median_high(loss_counts),
            "settings": self.spec["settings"],
            "lines": {s.name: s.lines_at(self.spec.get("places", {})) for s in watch.switches},
        }
        return rows, record

    def _products(self):
        """Return the Counters of matrix products of this run and of its base, None if unknown."""
        is_known = "operators" not in self.watch.failures
        return self.look.products if is_known else None, self.spec.get("products")

    def _timed(self):
        """Return whether each step is timed. A step with a rare event, as a validation, is not."""
        counts = Counter(event for iteration in self.iterations for event in iteration.events)
        rare = {event for event in counts if counts[event] < len(self.iterations) / 3}
        timed = [
            is_timed and not rare & iteration.events
            for is_timed, iteration in zip(self.clock.timed, self.iterations, strict=True)
        ]
        if not any(timed):
            raise Ended("each timed step holds a validation, or the like; raise STEPS")
        left_out = sum(self.clock.timed) - sum(timed)
        if left_out:
            steps = plural(left_out, "step")
            self.args.outcome.notes.append(f"{steps} with validation or the like left out")
        return timed

    @unwatched
    def append(self, end):
        """Append the rows of the run, or the one that says why there are no timings.

        A look leaves what was seen in a file instead. A script that is refused has no row.
        """
        if self.end:
            return
        args = self.args
        answer = {}
        try:
            if end.status == "ok":
                for switch in self.watch.switches:
                    problem = switch.problem(self._products())
                    if problem:
                        raise Ended(f"{switch.name}: {problem}", "unsupported")

                rows, record = self._combined()
                if args.look:
                    columns = (*run_record.OF_SCRIPT, "device", "torch")
                    answer["look"] = self.look.result(self.hardware) | {
                        "version": version(self.spec),
                        "row": {name: rows[0][name] for name in columns},
                        "record": record,
                    }
                if args.trace:
                    self.profiled.profile.export_chrome_trace(args.trace)
                    step_ms = [row["step_ms"] for row in rows if row["phase"] == "timed"]
                    answer["look"]["profile"] = {
                        "timed_median_ms": median(step_ms),
                        "clock_ms": self.profiled.clock_ms,
                        "ceilings": measured_ceilings.ceilings(self.hardware),
                    }
        except Ended as problem:
            end = problem
        except Exception as error:  # it would look like one of the script's
            traceback.print_exception(error)
            end = fault(error)
            answer = {}

        if end.status == "refused" and self.spec["columns"]:
            end.status = "failed"
        try:
            with redirect_stderr(self.terminal):
                if args.look:
                    answer["reason"] = end.reason
                    files.write(self.spec["answer"], json.dumps(answer, default=str))
                elif end.status == "ok":
                    rows_file.append(args.results_file, rows, record)
                elif end.status != "refused":
                    device = self.hardware or device_choice.choose(args.device)
                    run_record.record_end(args.replace(hardware=device), end.status, end.reason)
        except UserError as error:
            end = Ended(str(error))

        if end.status == "refused":
            line = f"{Path(self.spec['file']).name}: {first_line(end.reason)}"
            say(line, self.terminal)
        self.end = end
        threading.Timer(5, self.end_process).start()  # in case the script catches Ended

    def end_in_time(self, minutes):
        """End a script after some minutes, with the reason."""
        steps = self.watch.ended_iterations
        reason = f"has taken {plural(steps, 'step')} of {self.args.steps} in TIMEOUT={minutes}"
        if not steps:
            reason += f"; {ELSEWHERE[self.watch.steps_elsewhere[0]]}"
        self.append(Ended(reason))
        self.end_process()

    def end_process(self, code=None):
        """End this process and its workers, without running more of the script.

        code: its exit code, by default 2 if the script was refused, otherwise 0.
        """
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        if code is None:
            code = 2 if self.end.status == "refused" else 0
        EXIT(code)
