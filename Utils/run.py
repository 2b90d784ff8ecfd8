"""The command line that all scripts share, the measured loop, and what a run records.

A step lasts from one boundary to the next, so that nothing falls between two steps: waiting for
the batch, the script's own code, and our few microseconds of bookkeeping are all in it. The clock
is chosen in `hardware`; on a GPU the loop contains no synchronization of ours.
"""

import contextlib
import logging
import math
import os
import runpy
import secrets
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from Utils.base import command_line, paths, results
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.harness import dynamo, ends, footprint, progress, quality, ranks, record, settings, work
from Utils.harness.footprint import GradientWatch
from Utils.harness.progress import Progress
from Utils.harness.settings import Settings
from Utils.harness.watch import OperatorWatch

# Compiled kernels are kept between runs; torch reads these when Inductor is first imported.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.CACHE / "inductor"))
os.environ.setdefault("TRITON_CACHE_DIR", str(paths.CACHE / "triton"))
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself otherwise
# Chatter that says nothing about the run. Everything else gets through.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*Please use the new API settings to control TF32")
warnings.filterwarnings("ignore", message=".*Online softmax is disabled on the fly")
logging.getLogger("torch._dynamo.variables.ctx_manager").setLevel(logging.ERROR)  # ranges of DDP's
warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")  # a note is
DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for its batches says so


def parse_args(doc, argv=None, technique=None):
    """The Settings of a training script. Its docstring `doc` is what --help prints.

    argv, technique: instead of this process's command line and script name.
    Ends the process with one line and exit code 2 where something asked for cannot be.
    """
    argv = sys.argv[1:] if argv is None else argv
    script = Path(sys.argv[0])
    parser = Parser(technique or script.name, doc)
    command_line.add_settings(parser)
    args = parser.parse_args(argv, Settings(technique=technique or script.stem))
    if args.rounds > 1:
        command = [sys.executable, "-m", "Utils.commands.suite", args.technique, *argv]
        if ranks.from_environment().world_size > 1:
            parser.error("--rounds: torchrun starts one run; make scaling has rounds")
        os.execve(sys.executable, command, paths.environment())
    try:
        settings.settle(args)
        results.check(args.results_file)
    except UserError as error:
        parser.error(str(error))
    args.started = datetime.now(UTC)
    args.run_id = f"{args.started:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(2)}"
    args.notes, args.needs, args.argv = [], [], argv
    # Now, not after the run: someone may edit the script meanwhile.
    args.commit, args.source = record._commit(), "" if technique else script.read_text()
    stderr = sys.stderr

    def ended_early(kind, error, trace):
        # init_process_group has put a hook of its own around this one, and a buffer over stderr,
        # which is lost where the process ends in here.
        with contextlib.redirect_stderr(stderr):
            ends._ended_early(args, error, trace)

    sys.excepthook = ended_early
    return args


def execute(technique, argv, run):
    """Runs a technique's script in this process, with the class `run` in place of Run.

    technique: of `ladder`. argv: its flags. What the script raises gets through to the caller.
    """
    module, arguments = sys.modules[__name__], sys.argv
    usual, module.Run = module.Run, run
    sys.argv = [str(technique.path), *argv]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        module.Run, sys.argv = usual, arguments
        ranks.leave()


class Run:
    """One measured training run. Its rows are appended when the `with` block ends well.

    model, optimizer: what is trained; read for the record, never touched.
    """

    def __init__(self, args, model, optimizer):
        self.args, self.model, self.optimizer = args, model, optimizer
        self.marks, self.data_ms, self.losses = [], [], []
        self.operators, self.gradients = OperatorWatch(), GradientWatch(model)
        self.dataset_facts = {}
        # Where the timed steps begin: the device's counters, and how much was compiled by then.
        self.before, self.compiled = None, 0

    def __enter__(self):
        args = self.args
        if args.world_size > 1 and "distributed" not in args.needs:
            raise UserError(
                f"it is no script for {args.world_size} ranks: each would train by itself; those "
                "that are, such as distributed_data_parallel, call args.require_ranks()"
            )
        if args.rank == 0:
            print(progress._headline(args), file=sys.stderr)
        return self

    def steps(self, batches):
        """Yields one batch a step, and marks the boundaries between steps.

        batches: an iterable that does not end before the run does.
        """
        args, mark, clock = self.args, self.args.hardware.mark, time.perf_counter
        counters = args.hardware.counters
        self.dataset_facts = getattr(batches, "facts", {})
        watched = 1 if args.warmup >= 3 else None  # watching slows the next step as well
        batches = iter(batches)
        with Progress(args, self.model) as progress:
            self.before = counters()
            self.marks.append(mark())
            for step in range(args.steps):
                start = clock()
                batch = next(batches)
                self.data_ms.append((clock() - start) * 1e3)
                if step == watched:
                    with self.operators, self.gradients:
                        yield batch
                else:
                    yield batch
                if step + 1 == args.warmup:  # its cost falls into the last step of the warm-up
                    self.before, self.compiled = counters(), dynamo.compiled_graphs()
                self.marks.append(mark())
                progress.show(step, self.losses)

    def log(self, loss):
        """Records the step's loss: a float, or a 0-d tensor, which is read after the run."""
        self.losses.append(loss)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            return
        args = self.args
        times = args.hardware.elapsed_ms(self.marks)
        after, readings = args.hardware.counters(), args.hardware.readings()
        watched = self.gradients.most, self.operators.most
        losses = [float(loss) for loss in self.losses]
        if len(times) <= args.warmup or len(losses) != len(times):
            raise RuntimeError(
                f"{len(times)} steps and {len(losses)} losses were recorded; the loop must run "
                f"beyond --warmup {args.warmup} and call run.log once a step"
            )
        own = Measured(
            times,
            self.data_ms,
            losses,
            footprint.memory(args.hardware, self.model, self.optimizer, *watched),
            (self.before, after, readings),
            bool(args.warmup and dynamo.compiled_graphs() > self.compiled),
            footprint.updated(self.model, self.optimizer),
            {"node": ranks.node(), "device": args.hardware.name},
            list(args.hardware.other_processes),
        )
        everyones = ranks.gather(own) if args.world_size > 1 else [own]
        if args.rank == 0:
            self._write(everyones)

    def _write(self, everyones):
        """Rows and record of what the ranks have measured: of each step the slowest one's time."""
        args = self.args
        times = [max(step) for step in zip(*(one.times for one in everyones), strict=True)]
        data_ms = [max(step) for step in zip(*(one.data_ms for one in everyones), strict=True)]
        losses = [
            sum(step) / args.world_size
            for step in zip(*(one.losses for one in everyones), strict=True)
        ]
        memory = max((one.memory for one in everyones), key=lambda memory: memory["peak_mib"])
        backend = self.operators.backend()
        if backend and "math" in backend:
            args.notes.append("scaled_dot_product_attention ran unfused (math)")
        if not all(map(math.isfinite, losses)):
            args.notes.append("the loss is not finite")
        if any(one.compiled_late for one in everyones):
            args.notes.append("torch.compile compiled in a timed step")
        timed = times[args.warmup :]
        waiting = sum(data_ms[args.warmup :]) / sum(timed)
        if waiting > DATA_SHARE:
            args.notes.append(f"waits for data {waiting:.0%} of the time")
        graded = self._quality(everyones, timed)
        constant = {
            **record._row(args, "ok"),
            "first_step_s": round(times[0] / 1e3, 4),
            "peak_memory_mib": memory["peak_mib"],
            "reserved_memory_mib": memory["reserved_mib"],
            "grade": graded["grade"],
        }
        rows = [
            {
                **constant,
                "step": step,
                "phase": "warmup" if step < args.warmup else "timed",
                "step_ms": round(step_ms, 4),
                "data_ms": round(data_ms, 4),
                "loss": loss,
            }
            for step, (step_ms, data_ms, loss) in enumerate(
                zip(times, data_ms, losses, strict=True)
            )
        ]
        known = {
            **record._record(args, "ok"),
            "dataset_facts": self.dataset_facts,
            **footprint.training(self.model, self.optimizer, [one.updated for one in everyones]),
            "attention_backend": backend,
            "memory": memory,
            "compile": dynamo.compilation(),
            "limits": work.describe(args),
            "quality": graded,
        }
        if args.world_size > 1:
            known["ranks"] = [
                {
                    "rank": rank,
                    **one.place,
                    "median_step_ms": round(float(np.median(one.times[args.warmup :])), 4),
                    "median_data_ms": round(float(np.median(one.data_ms[args.warmup :])), 4),
                    "memory": one.memory,
                }
                for rank, one in enumerate(everyones)
            ]
        record._write(args, rows, known)
        print(progress._last_line(args, rows, graded["reasons"]))

    def _quality(self, everyones, timed):
        """Of the run: of rank 0's device, with what taints the others'. The cores of one machine
        are at work for all ranks there, and none of these is another process to the others."""
        found = {}
        for rank, one in enumerate(everyones):
            before, after, readings = one.counters
            here = [other for other in everyones if other.place["node"] == one.place["node"]]
            if "own_cpu_s" in after and len(here) > 1:
                if one is not here[0]:
                    continue
                before, after = (
                    ends | {"own_cpu_s": sum(other.counters[at]["own_cpu_s"] for other in here)}
                    for at, ends in enumerate((before, after))
                )
            found[rank] = quality.describe(one.others, before, after, readings, timed)
        more = [
            f"rank {rank}: {reason}"
            for rank, other in found.items()
            for reason in other["reasons"]
            if reason not in found[0]["reasons"]
        ]
        reasons = found[0]["reasons"] + more
        return found[0] | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}


class Measured(NamedTuple):
    """What one rank has measured: of each step times and data_ms, in milliseconds, and losses;
    memory, of `record`; counters, before and after the timed steps, and readings; whether
    something was compiled in a timed step; which parameters were ever updated; its place; and who
    else holds its device."""

    times: list
    data_ms: list
    losses: list
    memory: dict
    counters: tuple
    compiled_late: bool
    updated: list
    place: dict
    others: list
