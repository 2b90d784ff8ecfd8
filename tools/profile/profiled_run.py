"""A run whose timed steps are followed by a few under the profiler."""

import gzip
import json
import shutil
import sys
from functools import partial
from statistics import median

import torch
from torch.profiler import record_function

from tools.own_script.profiled_steps import ALL_PROFILED, PROFILED, WAIT, ProfiledSteps
from tools.profile import profile_page
from tools.profile.step_breakdown import ON_DEVICE, break_down
from Utils.base import command_line, files
from Utils.base.errors import Unsupported, UserError, naming
from Utils.device import capabilities
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS
from Utils.run import Run, execute
from Utils.scripts import ladder

RUN_FIELDS = ("run_id", "commit", "model", "batch_size", "seq_len", "dataset")


def profile(technique, settings):
    """Run a technique and profile a few more steps. Return the dict that NAME.json then holds.

    On ranks other than the first it has no profile. A script that fails, or cannot run, ends the
    process as in any other run. settings: of `make profile`.
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
        steps=settings.steps + ALL_PROFILED,
        min_seconds=0,
    )
    summary = {"technique": technique.name, "torch": torch.__version__}
    run = partial(ProfiledRun, technique, settings, summary)
    execute(technique, flags, run, passes=lambda error: False)
    return summary


class ProfiledRun(Run):
    """A Run whose timed steps are followed by a few under the profiler, on the next batches.

    The run is recorded before these begin, so its figures do not include them.
    """

    def __init__(self, technique, settings, summary, args, model, optimizer):
        if isinstance(args.hardware, MPS):
            raise Unsupported("torch's profiler sees no Apple GPU; DEVICE=cpu shows the CPU")
        super().__init__(args.replace(steps=args.steps - ALL_PROFILED), model, optimizer)
        self.technique = technique
        self.settings = settings
        self.summary = summary
        self.profiled = None

    def steps(self, batches):
        yield from super().steps(batches)
        super().__exit__(None, None, None)

        self.profiled = ProfiledSteps()
        print(f"  {PROFILED} steps under the profiler ...", file=sys.stderr)
        for _ in self.profiled.boundaries(self.args.hardware):
            with record_function(WAIT):
                batch = self._next_batch()
            yield batch

    def log(self, loss):
        if not self.profiled:
            super().log(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None or self.args.rank:  # rank 0's profile is kept
            return

        args = self.args
        device = args.hardware
        scripts = ladder.repository(capabilities.precision(device))
        self.summary |= {field: getattr(args, field) for field in RUN_FIELDS}
        self.summary |= {
            "device": device.name,
            "timed_median_ms": median(self.clock.step_ms()[args.warmup :]),
            "clock_ms": self.profiled.clock_ms,
        }
        keep(
            self.summary,
            self.settings.output,
            lambda file: self.profiled.profile.export_chrome_trace(str(file)),
            needs=args.needs,
            on_gpu=isinstance(device, CUDA),
            labels=profile_page.useful_techniques(self.technique, args.needs, device, scripts),
        )


def profile_own(name, inspection, trace, folder):
    """Keep the profile of a user's script in a folder. Return its summary.

    inspection: an Inspection in whose run steps under the profiler are in a trace.
    """
    # Techniques that may be advised, with the places in the script where they would act.
    labels = {}
    for technique, switch in inspection.switches.items():
        precisions = {"bfloat16", "float16"}.intersection(switch.needs)
        if not switch.refusal and precisions <= {inspection.precision}:
            places = f" ({', '.join(switch.places)})" if switch.places else ""
            labels[technique] = f"{technique}{places}"
    without_workers = [str(place) for place, workers in inspection.loaders if not workers]
    if without_workers:
        labels["prefetching_loader"] = f"num_workers of DataLoader ({', '.join(without_workers)})"

    summary = {"technique": name} | inspection.profile
    summary |= {column: inspection.row[column] for column in ("device", "torch", "commit")}
    keep(
        summary,
        folder,
        partial(shutil.copy, trace),
        needs=["tf32"] if "tf32" in inspection.in_script else [],
        on_gpu=inspection.device == "cuda",
        labels=labels,
    )
    return summary


def keep(summary, folder, write_trace, **facts):
    """Write the files of a profile to a folder, and add what the trace shows to the summary.

    They replace older ones, the summary last. If a file cannot be written, all older ones stay.
    Raises UserError, also if there are such files that are no profile's: then the summary there has
    no mark.

    write_trace: a function of the trace's path. facts: the arguments of `read` besides the trace.
    """
    names = [f"{summary['technique']}.{kind}" for kind in ("trace.json.gz", "json")]
    has_profile = files.is_marked(folder / names[-1])
    for name in names:
        files.claim(folder / name, lambda file: has_profile)

    with naming(folder), files.new_folder(folder) as unfinished:
        trace, page = (unfinished / name for name in names)
        write_trace(trace)
        summary |= read(trace, **facts)
        text = json.dumps({"written_by": files.MARK} | summary, indent=1, default=vars) + "\n"
        page.write_text(text)
        for file in (trace, page):
            file.replace(folder / file.name)


def read(trace, needs, on_gpu, labels):
    """Return the Breakdown of a trace and the advice, a dict for a summary.

    trace: its file. needs, on_gpu, labels: as `profile_page.advise` takes them. Raises UserError if
    the trace has no kernels of the GPU.
    """
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    if on_gpu and not any(event.get("cat") in ON_DEVICE for event in events):
        raise UserError(
            "torch.profiler saw no kernel on the GPU: CUPTI (on AMD roctracer) is missing, "
            "or may not be used here, as in some containers"
        )

    breakdown = break_down(events)
    advice = profile_page.advise(breakdown, labels, on_gpu, needs)
    return {"profile": breakdown, "advice": advice}
