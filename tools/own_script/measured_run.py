"""One run of a user's training script under a Watch, and how it ends."""

import json
import os
import random
import resource
import runpy
import sys
import threading
from contextlib import redirect_stderr, suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tools.own_script import faults, models, write_guard
from tools.own_script.descendants import end_descendants
from tools.own_script.inspector import Inspector, ObservedStep
from tools.own_script.measurement import Measurement
from tools.own_script.model_switches import TorchCompile
from tools.own_script.profiled_steps import ALL_PROFILED
from tools.own_script.replaced import unwatched
from tools.own_script.switches import SWITCHES
from tools.own_script.user_code import Ended, version
from tools.own_script.watch import Watch
from Utils.base import files
from Utils.base.errors import UserError, first_line, say
from Utils.base.text import plural
from Utils.device import device_choice
from Utils.harness import run_record, settings
from Utils.results import rows_file

EXIT = os._exit  # a script may replace it, as those of this repository do
MOST_BACKWARDS = 100  # without an optimizer


class Measured:
    """One run of a script. args: from `settings_of`. opened: patched files that it has imported."""

    end = None  # the first Ended, of which there are rows or a line
    measurement = None  # from the first step on

    def __init__(self, args, opened):
        self.args = args
        self.opened = opened
        self.spec = args.spec
        self.file_size = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The script's output goes elsewhere.
        self.terminal = os.fdopen(os.dup(2), "w", errors="backslashreplace")

        self.watch = Watch(self.spec, self.begins, self.iteration_ended)
        first, observer = (2, Inspector) if self.spec.inspects else (1, ObservedStep)
        self.observed = observer(self.watch, first if first < args.warmup else None)

        switches = [SWITCHES[name](self.watch) for name in args.switches]
        # torch.compile comes first, so that autocast is around the compiled model.
        self.watch.switches = sorted(switches, key=lambda s: not isinstance(s, TorchCompile))

    def run_script(self):
        """Run the script. Return how it ended, an Ended."""
        watch = self.watch
        for switch in watch.switches:
            switch.start()

        with unwatched:
            random.seed(self.args.seed)
            np.random.seed(self.args.seed % 2**32)
            torch.manual_seed(self.args.seed)
        spec = self.spec
        self.guard = write_guard.WriteGuard(spec, partial(watch.note, "a file written"))

        sys.argv = [spec.script, *spec.arguments]
        sys.path.insert(0, spec.folder if spec.is_module else str(Path(spec.file).parent))
        failure = None
        try:
            if spec.is_module:
                runpy.run_module(spec.script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(spec.script, run_name="__main__")
        except Ended as end:
            return end
        except BaseException as error:
            failure = error

        if self.end or self.guard.refused:
            return self.end or Ended(self.guard.refused)
        if getattr(failure, "code", failure):  # not sys.exit() or sys.exit(0)
            return faults.end_of_script(failure, spec, watch.switches)
        steps = watch.ended_iterations
        if not steps:
            return Ended(watch.steps.problems.read()[-1])
        if spec.perturbation:
            return Ended("", "ok")
        needed = self.args.steps + (ALL_PROFILED if spec.trace else 0)
        lower = "" if spec.inspects else ", or set STEPS lower"
        return Ended(f"ends after {steps} steps of {needed}; let it train longer, by ARGS{lower}")

    @faults.ours
    def begins(self):
        """Act before each model call, backward or optimizer step."""
        parameters = self.watch.parameters()
        self.watch.observe("begin of a step", self.observed.begin_or_end)
        if self.measurement:
            self.measurement.gradients.measure()
        elif parameters:
            self._start(parameters)
        elif self.watch.backwards >= MOST_BACKWARDS:
            reason = f"has made no torch.optim.Optimizer by its {MOST_BACKWARDS}th backward"
            raise Ended(reason)

    def _start(self, parameters):
        """Start the clock on the device of the trained parameters."""
        if _on_several(parameters):
            raise Ended("trains on several devices or ranks")

        args = self.args
        device = parameters[0].device
        # This process has a context by now, by which a container's NVML may not know it.
        partners = {os.getpid(), *(args.turn.partners() if args.turn else ())}
        with torch.cuda.device_of(parameters[0]):  # torch's current device stays what it is
            hardware = device_choice.choose(str(device), partners=partners)
        min_seconds = settings.min_seconds(args, hardware)
        needs = [need for switch in self.watch.switches for need in switch.needs]
        self.args = args.replace(hardware=hardware, min_seconds=min_seconds, needs=needs)
        settings.check_needs(self.args)
        self.measurement = Measurement(self.args, self.watch)

    @faults.ours
    def iteration_ended(self, iteration):
        """Mark the end of a step. The last one raises Ended, which ends the script."""
        if self.end:  # the script has caught Ended
            self.end_process()
        if self.guard.refused:
            raise Ended(self.guard.refused)
        self.watch.observe("begin of a step", self.observed.begin_or_end)
        try:
            is_last = self.step_ended(iteration)
        except KeyboardInterrupt:  # the launcher has ended; a bare except could catch it
            self.end_process(130)
        if is_last:
            self.append(Ended("", "ok"))
            raise self.end

    def step_ended(self, iteration):
        """Measure the end of a step. Return whether it was the last one."""
        return self.measurement.step_ended(iteration)

    @faults.ours
    def _result(self):
        """Return a function that stores the result of a run that ended well. Raises Ended."""
        spec = self.spec
        if spec.patched:
            texts = json.loads(Path(spec.patched).read_text())
            for file in sorted(texts.keys() - self.opened):
                raise Ended(f"does not import {file}, so a patch of it cannot be measured")

        is_known = "operators" not in self.watch.failures
        products = self.observed.products if is_known else None, spec.inspection.products
        for switch in self.watch.switches:
            problem = switch.problem(products)
            if problem:
                raise Ended(f"{switch.name}: {problem}", "unsupported")

        rows, record = self.measurement.rows_and_record(products, self.guard.notes.read())
        if not spec.inspects:
            return partial(rows_file.append, self.args.results_file, rows, record)
        columns = (*run_record.OF_SCRIPT, "device", "torch")
        inspection = self.observed.result(
            self.args.hardware,
            version=version(spec),
            row={name: rows[0][name] for name in columns},
            record=record,
            profile=self.measurement.profile(rows) if spec.trace else None,
        )
        text = json.dumps(vars(inspection), default=str)
        return partial(files.write, Path(spec.runs, "inspection.json"), text)

    @unwatched
    def append(self, end):
        """Append the rows of the run, or the one that says why there are no timings.

        A run that is not timed leaves a file instead. A script that is refused has no row.
        """
        if self.end:
            return
        args = self.args
        spec = self.spec
        is_timed = not spec.inspects and not spec.perturbation
        with suppress(ValueError):  # the script may have set another for good
            resource.setrlimit(resource.RLIMIT_FSIZE, self.file_size)
        try:
            if end.status == "ok":
                store = self._result()
        except Ended as problem:
            end = problem

        if end.status == "refused" and spec.columns:
            end.status = "failed"
        if end.status != "ok" and not is_timed:
            end.status = "refused"
        try:
            with redirect_stderr(self.terminal):
                if end.status == "ok":
                    store()
                elif end.status != "refused":
                    record_end(args, end.status, end.reason)
        except UserError as error:
            end = Ended(str(error))

        if end.status == "refused":
            name = f"{Path(spec.file).name}: " if is_timed else ""
            say(name + first_line(end.reason), self.terminal)
        self.end = end
        threading.Timer(5, self.end_process).start()  # in case the script catches Ended

    def end_in_time(self):
        """End a script after the time-out, with the reason."""
        steps = self.watch.ended_iterations
        taken = f"has taken {plural(steps, 'step')} of {self.args.steps}"
        problem = "" if steps else f"; {self.watch.steps.problems.read()[-1]}"
        self.append(Ended(f"{taken} in TIMEOUT={self.spec.timeout}{problem}"))
        self.end_process()

    def end_process(self, code=None):
        """End this process and what it has started, without running more of the script.

        code: its exit code, by default 2 if the script was refused, otherwise 0.
        """
        end_descendants()
        sys.stdout.flush()
        sys.stderr.flush()
        if code is None:
            code = 2 if self.end.status == "refused" else 0
        EXIT(code)


def record_end(args, status, reason):
    """Append the row of a run that has no timings."""
    device = args.hardware or device_choice.choose(args.device)
    run_record.record_end(args.replace(hardware=device), status, reason)


def _on_several(parameters):
    """Return whether a script trains these parameters on several devices or ranks."""
    ranks = torch.distributed
    several = ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
    several |= len({p.device for p in parameters}) > 1
    for module in models.modules_with(parameters):
        several |= type(module).__name__.startswith(
            ("FullyShardedDataParallel", "FSDP", "DeepSpeedEngine")
        )
        several |= isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1
    return several
