"""A run whose timed steps are followed by a few under the profiler."""

import cProfile
import gzip
import io
import json
import pickle
import pstats
import shutil
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch.profiler import record_function

from tools.own_script.profiled_steps import ALL_PROFILED, PROFILED, WAIT, ProfiledSteps
from tools.profile import profile_page
from tools.profile.memory_history import memory_history
from tools.profile.step_breakdown import ON_DEVICE, break_down
from Utils.base import command_line, files
from Utils.base.errors import Unsupported, UserError, naming
from Utils.base.units import MIB
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS
from Utils.harness import ranks
from Utils.run import Run, execute
from Utils.scripts import ladder

PYTHON_STEPS = 3
MEMORY_STEPS = 2
FUNCTIONS = 8  # number of Python functions that are shown
FILE_KINDS = ("json", "trace.json.gz", "prof", "memory.pickle")
RUN_FIELDS = ("run_id", "commit", "model", "batch_size", "seq_len", "dataset")


def profile(technique, settings, forecast_ms=()):
    """Run a technique and profile a few more steps. Return the dict that NAME.json then holds.

    That is the summary, or status and note without one; on ranks other than the first, only the
    status. settings: of `make profile`. forecast_ms: a forecast by kind of work. Raises what the
    script raises, except Unsupported and running out of memory.
    """
    # Importing it takes seconds, and a run in several processes does not need it.
    import torch._inductor.config as inductor  # noqa: PLC0415

    # Show the kernels within C++ that Inductor has compiled.
    inductor.cpp.enable_kernel_profile = True
    flags = command_line.round_flags(
        settings,
        settings.round,
        technique.code,
        results_file=settings.output / "results.csv",
        seed=settings.seed,
        steps=settings.steps + further_steps(settings),
        min_seconds=0,
    )

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
    with new_files(settings.output, summary):
        return summary


def _handled(error):
    """Return whether this module or its command handles an exception; others fail the run."""
    if isinstance(error, Unsupported) or device_choice.is_out_of_memory(error):
        return True
    alone = ranks.from_environment().world_size == 1  # the launcher reports how a rank ended
    return alone and isinstance(error, UserError | KeyboardInterrupt)


def further_steps(settings):
    """Return the number of steps after the timed ones."""
    steps = ALL_PROFILED
    if settings.cpu:
        steps += PYTHON_STEPS
    if settings.memory:
        steps += MEMORY_STEPS
    return steps


class ProfiledRun(Run):
    """A Run whose timed steps are followed by a few under the profiler, on the next batches.

    The run is recorded before these begin, so its figures do not include them.
    """

    def __init__(self, technique, settings, forecast_ms, summary, args, model, optimizer):
        if isinstance(args.hardware, MPS):
            raise Unsupported("torch's profiler sees no Apple GPU; DEVICE=cpu shows the CPU")
        args = args.replace(steps=args.steps - further_steps(settings))
        super().__init__(args, model, optimizer)
        self.technique = technique
        self.settings = settings
        self.forecast_ms = forecast_ms
        self.summary = summary
        self.profiled = None
        self.cprofile = None
        self.allocations = None

    def steps(self, batches):
        yield from super().steps(batches)
        super().__exit__(None, None, None)

        self.profiled = ProfiledSteps()
        print(f"  {PROFILED} steps under the profiler ...", file=sys.stderr)
        for _ in self.profiled.boundaries(self.args.hardware):
            with record_function(WAIT):
                batch = self._next_batch()
            yield batch

        if self.settings.cpu:
            self.cprofile = cProfile.Profile()
            for _ in range(PYTHON_STEPS):
                self.cprofile.enable()
                yield self._next_batch()
                self.cprofile.disable()

        if self.settings.memory:
            with memory_history(self.args.hardware) as self.allocations:
                for _ in range(MEMORY_STEPS):
                    yield self._next_batch()

    def log(self, loss):
        if not self.profiled:
            super().log(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None or self.args.rank:  # rank 0's profile is kept
            return
        with new_files(self.settings.output, self.summary) as folder:
            self._write(folder)

    def _write(self, folder):
        """Write the files of the profile, and add what they show to the summary."""
        # The trace, Python's functions, and the history of the allocator.
        args = self.args
        name = self.technique.name
        file = folder / f"{name}.trace.json.gz"
        self.profiled.profile.export_chrome_trace(str(file))
        python = ""
        if self.cprofile:
            self.cprofile.dump_stats(folder / f"{name}.prof")
            functions = io.StringIO()
            stats = pstats.Stats(self.cprofile, stream=functions).strip_dirs()
            stats.sort_stats("tottime").print_stats(FUNCTIONS)
            python = f"\nPython, {PYTHON_STEPS} steps:{functions.getvalue().rstrip()}\n"
        if self.allocations:
            (folder / f"{name}.memory.pickle").write_bytes(pickle.dumps(self.allocations))

        # The breakdown. A forecast is for the requested batch.
        on_gpu = isinstance(args.hardware, CUDA)
        ceilings = measured_ceilings.ceilings(args.hardware)
        is_requested_batch = args.batch_size == args.requested_batch_size
        forecast_ms = self.forecast_ms if is_requested_batch else ()
        self.summary |= read(file, args.needs, ceilings, self.memory, on_gpu, forecast_ms)
        breakdown = self.summary["profile"]

        # The advice, and the run itself.
        scripts = ladder.repository(capabilities.precision(args.hardware))
        labels = profile_page.useful_techniques(self.technique, args.needs, args.hardware, scripts)
        self.summary |= {field: getattr(args, field) for field in RUN_FIELDS}
        self.summary |= {
            "note": "; ".join(args.outcome.notes),
            "device": args.hardware.name,
            "asked_batch_size": args.requested_batch_size,
            "timed_median_ms": median(self.clock.step_ms()[args.warmup :]),
            "clock_ms": self.profiled.clock_ms,
            "advice": profile_page.advise(breakdown, labels, on_gpu, args.needs),
            "python": python,
        }


def keep_own(name, inspection, trace, folder):
    """Keep the profile of a user's script in a folder. Return its summary.

    inspection: an Inspection in whose run steps under the profiler are in a trace.
    """
    on_gpu = inspection.device == "cuda"
    summary = {"technique": name, "status": "ok", "python": ""} | inspection.profile
    summary |= {column: inspection.row[column] for column in ("device", "torch", "commit")}

    # Techniques that may be advised, with the places in the script where they would act.
    labels = {}
    for technique, switch in inspection.switches.items():
        precisions = {"bfloat16", "float16"}.intersection(switch.needs)
        if not switch.refusal and precisions <= {inspection.precision}:
            places = f" ({', '.join(switch.places)})" if switch.places else ""
            labels[technique] = f"{technique}{places}"

    with new_files(folder, summary) as unfinished:
        file = shutil.copy(trace, unfinished / f"{name}.trace.json.gz")
        needs = ["tf32"] if "tf32" in inspection.in_script else []
        ceilings = summary.pop("ceilings")
        summary |= read(file, needs, ceilings, inspection.record["memory"], on_gpu)
        summary["advice"] = profile_page.advise(summary["profile"], labels, on_gpu)
    return summary


def read(trace, needs, ceilings, memory, on_gpu, forecast_ms=()):
    """Return the Breakdown of a trace and the peak memory of tensors, a dict for a summary.

    trace: its file. memory: from a record. The other arguments are those of `break_down`. Raises
    UserError if the trace has no kernels of the GPU.
    """
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    if on_gpu and not any(event.get("cat") in ON_DEVICE for event in events):
        raise UserError(
            "torch.profiler saw no kernel on the GPU: CUPTI (on AMD roctracer) is missing, "
            "or may not be used here, as in some containers"
        )

    weights_mib = memory["weights_mib"]
    state_mib = memory["optimizer_state_mib"]
    # An update reads and writes weights and state, and reads gradients.
    update_bytes = (3 * weights_mib + 2 * state_mib) * MIB
    breakdown = break_down(events, needs, ceilings, update_bytes, forecast_ms)
    peak_mib = breakdown.peak_mib  # besides weights and the optimizer's state
    tensors_mib = None if peak_mib is None else round(weights_mib + state_mib + peak_mib, 1)
    return {"profile": breakdown, "tensors_mib": tensors_mib}


@contextmanager
def new_files(folder, summary):
    """Yield a folder for the files of a technique, which then replace the old ones.

    The summary is written last. If a file cannot be written, all old ones stay. Raises UserError,
    also if there are such files that are no profile's: then the summary there has no mark.
    """
    name = summary["technique"]
    old_files = [folder / f"{name}.{kind}" for kind in FILE_KINDS]
    has_profile = files.is_marked(folder / f"{name}.json")
    for file in old_files:
        files.claim(file, lambda file: has_profile)
    with naming(folder), tempfile.TemporaryDirectory(prefix=".", dir=folder) as unfinished:
        unfinished = Path(unfinished)
        yield unfinished

        written = sorted(path.name for path in unfinished.iterdir())
        summary["files"] = written
        text = json.dumps({"written_by": files.MARK} | summary, indent=1, default=vars) + "\n"
        (unfinished / f"{name}.json").write_text(text)
        for old in old_files:
            old.unlink(missing_ok=True)
        for file in [*written, f"{name}.json"]:
            (unfinished / file).replace(folder / file)
