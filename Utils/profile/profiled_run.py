"""A run whose timed steps are followed by a few under the profiler."""

import cProfile
import io
import json
import pickle
import pstats
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch.profiler import record_function

from Utils.base import command_line
from Utils.base.errors import Unsupported, UserError, naming
from Utils.base.units import MIB
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.device.cpu import MPS
from Utils.device.cuda import CUDA
from Utils.harness import memory_kinds, ranks
from Utils.profile import profile_advice
from Utils.profile.step_breakdown import WAIT, break_down
from Utils.run import Run, execute
from Utils.scripts import ladder

STEPS = 4  # are summed up; one before them is discarded, one after closes the last
PYTHON_STEPS, MEMORY_STEPS = 3, 2
FUNCTIONS = 8  # of Python's that are shown


def profile(technique, settings, forecast_ms=()):
    """Run a technique and profile a few steps more. Return a dict, which NAME.json then holds: the
    summary, or status and note without one. On ranks but the first, the status.

    settings: of `make profile`. forecast_ms: a forecast by kind of work. Raises what the script
    raises, other than Unsupported and running out of memory.
    """
    # Else C++ that Inductor has compiled is one dark stretch of the trace. Here, as importing it
    # takes seconds, and a run in several processes does without.
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True
    changes = {"results_file": settings.folder / "results.csv", "seed": settings.seed}
    changes |= {"steps": settings.steps + further_steps(settings), "min_seconds": 0}
    flags = command_line.round_flags(settings, settings.round, technique.code, **changes)
    summary = {"technique": technique.name, "status": "ok", "torch": torch.__version__}
    try:
        run = partial(ProfiledRun, technique, settings, forecast_ms, summary)
        execute(technique, flags, run, passes=_handled)
        return summary
    except Unsupported as reason:
        summary |= {"status": "unsupported", "note": str(reason)}
    except Exception as error:
        if not device_choice.is_out_of_memory(error):
            raise
        note = "out of memory; a smaller BATCH_SIZE may fit"
        summary |= {"status": "out_of_memory", "note": note}
    summary["device"] = device_choice.choose(settings.device).name
    keep(settings.folder, summary)
    return summary


def _handled(error):
    """Return whether this module or its command handles an exception; a bug is a failed run."""
    alone = ranks.from_environment().world_size == 1  # a rank's end is its launcher's to tell
    told = isinstance(error, UserError | KeyboardInterrupt) and alone
    return told or isinstance(error, Unsupported) or device_choice.is_out_of_memory(error)


def further_steps(settings):
    """Return the number of steps after the timed ones."""
    return 1 + STEPS + 1 + PYTHON_STEPS * bool(settings.cpu) + MEMORY_STEPS * bool(settings.memory)


class ProfiledRun(Run):
    """A Run whose timed steps are followed by a few under the profiler, on the batches that come
    next. The run is recorded before these begin, so nothing of them is in its figures.

    technique: of `ladder`. settings, forecast_ms, summary: see `profile`.
    """

    def __init__(self, technique, settings, forecast_ms, summary, args, model, optimizer):
        if isinstance(args.hardware, MPS):
            reason = "torch's profiler does not see an Apple GPU; DEVICE=cpu shows the CPU"
            raise Unsupported(reason)
        args.steps -= further_steps(settings)
        super().__init__(args, model, optimizer)
        self.technique = technique
        self.settings = settings
        self.forecast_ms = dict(forecast_ms)
        self.summary = summary
        self.recorded = False
        self.cprofile = None
        self.allocations = None

    def steps(self, batches):
        yield from super().steps(batches)
        super().__exit__(None, None, None)
        self.recorded = True
        print(f"  {STEPS} steps under the profiler ...", file=sys.stderr)
        yield from self._profiled()
        if self.settings.cpu:
            self.cprofile = cProfile.Profile()
            for _ in range(PYTHON_STEPS):
                self.cprofile.enable()
                yield self._next_batch()
                self.cprofile.disable()
        if self.settings.memory:
            with self.args.hardware.memory_history() as self.allocations:
                for _ in range(MEMORY_STEPS):
                    yield self._next_batch()

    def _profiled(self):
        marks = []
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS + 1, repeat=1)
        options = {"schedule": schedule, "record_shapes": True, "profile_memory": True}
        with torch.profiler.profile(**options) as self.profile:
            for _ in range(1 + STEPS + 1):
                marks.append(self.args.hardware.mark())
                with record_function(WAIT):
                    batch = self._next_batch()
                yield batch
                self.profile.step()
        self.clock_ms = self.args.hardware.elapsed_ms(marks)[1:]

    def log(self, loss):
        if not self.recorded:
            super().log(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None or self.args.rank:  # rank 0's profile is the one that is kept
            return
        self.summary |= self._breakdown()
        keep(self.settings.folder, self.summary, self.profile, self.cprofile, self.allocations)

    def _breakdown(self):
        """Return what the profile tells, for the summary."""
        args = self.args
        events = self.profile.events()
        on_device = any(event.device_type != torch.autograd.DeviceType.CPU for event in events)
        if isinstance(args.hardware, CUDA) and not on_device:
            raise UserError(
                "torch.profiler saw no kernel on the GPU: CUPTI (on AMD roctracer) is missing, "
                "or may not be used here, as in some containers"
            )
        memory = memory_kinds.memory(args.hardware, self.model, self.optimizer, None)
        weights_mib = memory["weights_mib"]
        state_mib = memory["optimizer_state_mib"]
        breakdown = break_down(
            events,
            self.profile.profiler.kineto_results.events(),
            args.needs,
            measured_ceilings.ceilings(args.hardware),
            # weights and state both ways, gradients one
            update_bytes=(3 * weights_mib + 2 * state_mib) * MIB,
        )
        # Memory that two batches would not fit.
        full = on_device and 2 * memory["peak_mib"] * MIB > args.hardware.memory_bytes
        with ladder.on_device(capabilities.has("bfloat16", args.hardware)):
            advice = profile_advice.advise(
                breakdown, self.technique, args.needs, args.hardware, full
            )
        if args.batch_size == args.requested_batch_size:  # that of the forecast
            for kind, ms in self.forecast_ms.items():
                breakdown.kinds[kind] = replace(breakdown.kinds[kind], forecast_ms=ms)
        peak_mib = breakdown.peak_mib  # beside weights and the optimizer's state
        tensors_mib = None if peak_mib is None else round(weights_mib + state_mib + peak_mib, 1)
        same = ("run_id", "commit", "model", "batch_size", "seq_len", "dataset", "needs")
        return {name: getattr(args, name) for name in same} | {
            "note": "; ".join(args.notes),
            "device": args.hardware.name,
            "asked_batch_size": args.requested_batch_size,
            "threads": torch.get_num_threads(),
            "timed_median_ms": median(self.clock.step_ms()[args.warmup :]),
            "clock_ms": self.clock_ms,
            "tensors_mib": tensors_mib,
            "profile": breakdown,
            "advice": advice,
            "python": _longest_functions(self.cprofile) if self.cprofile else "",
        }


def keep(folder, summary, profile=None, cprofile=None, allocations=None):
    """Put the files of a technique in place of the old ones, the summary last.

    Where they cannot all be written, the old ones stay. Raises UserError.
    """
    name = summary["technique"]
    with naming(folder), tempfile.TemporaryDirectory(prefix=".", dir=folder) as unfinished:
        unfinished = Path(unfinished)
        if profile:
            profile.export_chrome_trace(str(unfinished / f"{name}.trace.json.gz"))
        if cprofile:
            cprofile.dump_stats(unfinished / f"{name}.prof")
        if allocations:
            (unfinished / f"{name}.memory.pickle").write_bytes(pickle.dumps(allocations))
        written = [path.name for path in unfinished.iterdir()]
        summary["files"] = sorted(written)
        text = json.dumps(summary, indent=1, default=vars) + "\n"
        (unfinished / f"{name}.json").write_text(text)
        for old in folder.glob(f"{name}.*"):
            old.unlink()
        for file in [*written, f"{name}.json"]:
            (unfinished / file).replace(folder / file)


def _longest_functions(profile):
    """Return the functions of Python that took longest by themselves, as pstats prints them."""
    text = io.StringIO()
    pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(FUNCTIONS)
    return f"\nPython, {PYTHON_STEPS} steps:{text.getvalue().rstrip()}\n"
