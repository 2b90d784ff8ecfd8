"""A run whose timed steps are followed by a few under the profiler."""

import cProfile
import gzip
import json
import pickle
import pstats
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch.profiler import record_function

from Utils.base import command_line, paths
from Utils.base.errors import Unsupported, UserError
from Utils.device import device_choice, measured_ceilings
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS
from Utils.harness import memory_kinds, ranks
from Utils.profile import profile_advice
from Utils.profile.step_breakdown import summarize
from Utils.profile.trace import WAIT
from Utils.run import Run, execute

STEPS = 4  # are summed up; one before them is discarded, one after closes the last
PYTHON_STEPS, MEMORY_STEPS = 3, 2
FUNCTIONS = 8  # of Python's that are shown


def profile(technique, wanted, expected=()):
    """Run a technique and profile a few steps more. Return what NAME.json then holds, a dict: the
    summary, or status and note without one. On ranks but the first, the status.

    wanted: the settings of `make profile`. expected: a forecast of milliseconds by kind. Raises
    what the script raises, other than Unsupported and running out of memory.
    """
    # Else C++ that Inductor has compiled is one dark stretch of the trace. Here, as importing it
    # takes seconds, and a run in several processes does without.
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True
    changes = {"results_file": wanted.folder / "results.csv", "seed": wanted.seed}
    changes |= {"steps": wanted.steps + further_steps(wanted), "min_seconds": 0}
    flags = command_line.round_flags(wanted, wanted.round, technique.code, **changes)
    summary = {"technique": technique.name, "status": "ok"}
    run = partial(ProfiledRun, technique, wanted, expected, summary)
    note = {"technique": technique.name, "torch": torch.__version__}
    try:
        execute(technique, flags, run, passes=_handled)
        return summary
    except Unsupported as reason:
        note |= {"status": "unsupported", "note": str(reason)}
    except Exception as error:
        if not device_choice.is_out_of_memory(error):
            raise
        note |= {"status": "out_of_memory", "note": "out of memory; a smaller BATCH_SIZE may fit"}
    with replacing(wanted.folder, technique.name) as folder:
        facts = note | {"device": device_choice.choose(wanted.device).name}
        (folder / f"{technique.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    return note


def _handled(error):
    """Return whether this module or its command handles an exception; a bug is a failed run."""
    alone = ranks.from_environment().world_size == 1  # a rank's end is its launcher's to tell
    told = isinstance(error, UserError | KeyboardInterrupt) and alone
    return told or isinstance(error, Unsupported) or device_choice.is_out_of_memory(error)


def further_steps(wanted):
    """Return the number of steps after the timed ones."""
    return 1 + STEPS + 1 + PYTHON_STEPS * bool(wanted.cpu) + MEMORY_STEPS * bool(wanted.memory)


class ProfiledRun(Run):
    """A Run whose timed steps are followed by a few under the profiler, on the batches that come
    next. The run is recorded before these begin, so nothing of them is in its figures.

    technique: of `ladder`. wanted, expected, summary: see `profile`.
    """

    def __init__(self, technique, wanted, expected, summary, args, model, optimizer):
        if isinstance(args.hardware, MPS):
            reason = "torch's profiler does not see an Apple GPU; DEVICE=cpu shows the CPU"
            raise Unsupported(reason)
        args.steps -= further_steps(wanted)
        super().__init__(args, model, optimizer)
        self.technique, self.wanted, self.recorded = technique, wanted, False
        self.expected, self.summary = expected, summary
        self.clock_ms, self.cprofile, self.history = [], None, None

    def steps(self, batches):
        facts, batches = getattr(batches, "facts", {}), iter(batches)
        yield from super().steps(batches)
        self.dataset_facts = facts
        super().__exit__(None, None, None)
        self.recorded = True
        print(f"  {STEPS} steps under the profiler ...", file=sys.stderr)
        yield from self._profiled(batches)
        if self.wanted.cpu:
            self.cprofile = cProfile.Profile()
            for _ in range(PYTHON_STEPS):
                self.cprofile.enable()
                yield next(batches)
                self.cprofile.disable()
        if self.wanted.memory:
            with self.args.hardware.memory_history() as self.history:
                for _ in range(MEMORY_STEPS):
                    yield next(batches)

    def _profiled(self, batches):
        marks, mark = [], self.args.hardware.mark
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS + 1, repeat=1)
        options = {"schedule": schedule, "record_shapes": True, "profile_memory": True}
        with torch.profiler.profile(**options) as self.profile:
            for _ in range(1 + STEPS + 1):
                marks.append(mark())
                with record_function(WAIT):
                    batch = next(batches)
                yield batch
                self.profile.step()
        self.clock_ms = self.args.hardware.elapsed_ms(marks)[1:]

    def log(self, loss):
        if not self.recorded:
            super().log(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        args, name = self.args, self.technique.name
        if args.rank:  # rank 0's trace is the one that is kept
            return
        with replacing(self.wanted.folder, name) as folder:
            self.profile.export_chrome_trace(str(folder / f"{name}.trace.json.gz"))
            if self.cprofile:
                self.cprofile.dump_stats(folder / f"{name}.prof")
            if self.history:
                with open(folder / f"{name}.memory.pickle", "wb") as file:
                    pickle.dump(self.history, file)
            with gzip.open(folder / f"{name}.trace.json.gz") as file:
                events = json.load(file)["traceEvents"]
            on_gpu = isinstance(args.hardware, CUDA)
            if on_gpu and not any(event.get("cat") == "kernel" for event in events):
                raise UserError(
                    "torch.profiler saw no kernel on the GPU: CUPTI (on AMD roctracer) is missing, "
                    "or may not be used here, as in some containers"
                )
            ceilings = measured_ceilings.ceilings(args.hardware)
            found = summarize(events, args.needs, ceilings, self._update_bytes())
            for kind, ms in dict(self.expected).items():
                if args.batch_size == args.requested_batch_size:  # that of the forecast
                    found["kinds"][kind]["forecast_ms"] = ms
            step = found["memory"]["peak_mib"]  # beside weights and the optimizer's state
            memory = memory_kinds.memory(args.hardware, self.model, self.optimizer, None)
            lasting = memory["weights_mib"] + memory["optimizer_state_mib"]
            self.summary |= self._facts() | {
                "tensors_mib": None if step is None else round(lasting + step, 1),
                "profile": found,
                "advice": profile_advice.advise(found, self.technique, args.needs, args.hardware),
                "python": _functions(self.cprofile) if self.cprofile else None,
                "files": sorted(path.name for path in folder.iterdir()),
            }
            (folder / f"{name}.json").write_text(json.dumps(self.summary, indent=1) + "\n")

    def _facts(self):
        args, note = self.args, "; ".join(self.args.notes)
        same = ("run_id", "commit", "model", "batch_size", "seq_len", "dataset", "needs")
        return {
            "note": note,
            "device": args.hardware.name,
            "torch": torch.__version__,
            **{name: getattr(args, name) for name in same},
            "asked_batch_size": args.requested_batch_size,
            "threads": torch.get_num_threads(),
            "timed_median_ms": median(self.clock.step_ms()[args.warmup :]),
            "clock_ms": self.clock_ms,
        }

    def _update_bytes(self):
        """Return the least that the optimizer reads and writes in a step: weights and state both
        ways, gradients one."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        state = (
            value
            for one in memory_kinds.optimizers(self.optimizer)
            for values in one.state.values()
            for value in values.values()
            if isinstance(value, torch.Tensor)
        )
        return 3 * sum(p.nbytes for p in trained) + 2 * sum(value.nbytes for value in state)


@contextmanager
def replacing(folder, name):
    """Yield a folder for the files of one technique. When the block ends well they take the place
    of the old ones, the summary last; else those stay as they were. Raises UserError."""
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as parts:
            yield Path(parts)
            for kind in ("trace.json.gz", "prof", "memory.pickle", "json"):
                new, old = Path(parts) / f"{name}.{kind}", folder / f"{name}.{kind}"
                new.replace(old) if new.exists() else old.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _functions(profile):
    """Return the functions of Python that took longest by themselves."""
    found = []
    stats = pstats.Stats(profile).stats
    for (file, line, name), (_, calls, own_s, total_s, _) in stats.items():
        place = Path(file)
        if place.is_absolute():
            inside = place.is_relative_to(paths.ROOT)
            file = place.relative_to(paths.ROOT) if inside else Path(*place.parts[-2:])
        function = name if str(file) == "~" else f"{file}:{line} {name}"
        sums = {"own_ms": own_s * 1e3, "total_ms": total_s * 1e3, "calls": calls}
        found.append({"function": function} | {key: x / PYTHON_STEPS for key, x in sums.items()})
    return sorted(found, key=lambda one: -one["own_ms"])[:FUNCTIONS]
