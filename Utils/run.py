"""The command line that all scripts share, the measured loop, and what a run records.

A step lasts from one boundary to the next, so that nothing falls between two steps: waiting for
the batch, the script's own code, and our few microseconds of bookkeeping are all in it. The clock
is chosen in `hardware`; on a GPU the loop contains no synchronization of ours.
"""

import argparse
import atexit
import contextlib
import ctypes
import json
import logging
import math
import os
import runpy
import secrets
import signal
import subprocess
import sys
import textwrap
import time
import traceback
import warnings
from datetime import UTC, datetime
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

from Utils.settings import CACHE, ROOT

# Compiled kernels are kept between runs; torch reads these when Inductor is first imported.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself otherwise

import numpy as np
import torch
from tqdm import tqdm

from Utils import hardware, limits, quality, ranks, record, results, settings
from Utils.config import CONFIGS
from Utils.errors import Unsupported, UserError

# Chatter that says nothing about the run. Everything else gets through.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*Please use the new API settings to control TF32")
warnings.filterwarnings("ignore", message=".*Online softmax is disabled on the fly")
logging.getLogger("torch._dynamo.variables.ctx_manager").setLevel(logging.ERROR)  # ranges of DDP's
warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")  # a note is
BUCKET_MB = 25  # of DistributedDataParallel, and of ours
DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for its batches says so
tqdm.monitor_interval = 0  # no thread of tqdm's beside the measured loop


class Settings(argparse.Namespace):
    """What the command line asked for, and what follows from it on this device.

    device: torch.device that tensors go to; hardware: its clock and memory.
    config: GPTConfig of the model. technique: the script's stem.
    rank, world_size, local_rank, local_world_size: of `ranks`. backend, patience: of the group that
    ranks form, by name and as the timedelta after which a rank is taken for hanging.
    """

    rank, world_size = 0, 1  # until `settle` knows

    def require(self, need):
        """Declares what the technique needs: one of `hardware.CHECKS`, such as "tf32", or the name
        of a package.

        Raises Unsupported where this device lacks it, which ends the run with a row that says so.
        Where the technique can run but not as meant, that goes into the run's note.
        """
        self.needs.append(need)
        if note := hardware.check(need, self.hardware):
            self.notes.append(note)

    def require_ranks(self):
        """Declares that the script's processes form a group, be it of one. Raises Unsupported."""
        self.require("distributed")
        if self.world_size > 1 and self.bucket_mb != BUCKET_MB:
            self.notes.append(f"buckets of {self.bucket_mb} MiB")
        ranks.stand_alone()

    def require_batch_multiple(self, n):
        """Declares that a rank's sequences of a step are dealt out to n equal parts. Raises
        Unsupported."""
        n *= self.world_size
        if self.batch_size % n:
            raise Unsupported(
                f"needs a batch size that is a multiple of {n}, not {self.batch_size}; "
                f"try --batch-size {n * -(-self.batch_size // n)}"
            )

    def require_text(self):
        """Declares that the corpus has to be text. Raises Unsupported."""
        if self.dataset == "synthetic":
            raise Unsupported("--dataset synthetic is random tokens: there is no text to stream")


# The command line -------------------------------------------------------------------------------


def parse_args(doc, argv=None, technique=None):
    """The Settings of a training script. Its docstring `doc` is what --help prints.

    argv, technique: instead of this process's command line and script name.
    Ends the process with one line and exit code 2 where something asked for cannot be.
    """
    argv = sys.argv[1:] if argv is None else argv
    script = Path(sys.argv[0])
    parser = settings.Parser(technique or script.name, doc)
    settings.add_settings(parser)
    args = parser.parse_args(argv, Settings(technique=technique or script.stem))
    if args.rounds > 1:
        command = [sys.executable, "-m", "Utils.suite", args.technique, *argv]
        if ranks.from_environment().world_size > 1:
            parser.error("--rounds: torchrun starts one run; make scaling has rounds")
        os.execve(sys.executable, command, settings.environment())
    try:
        settle(args)
        results.check(args.results_file)
    except UserError as error:
        parser.error(str(error))
    args.started = datetime.now(UTC)
    args.run_id = f"{args.started:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(2)}"
    args.notes, args.needs, args.argv = [], [], argv
    # Now, not after the run: someone may edit the script meanwhile.
    args.commit, args.source = _commit(), "" if technique else script.read_text()
    stderr = sys.stderr

    def ended_early(kind, error, trace):
        # init_process_group has put a hook of its own around this one, and a buffer over stderr,
        # which is lost where the process ends in here.
        with contextlib.redirect_stderr(stderr):
            _ended_early(args, error, trace)

    sys.excepthook = ended_early
    return args


def settle(args):
    """Turns what was asked for into what will run, on the device chosen. Raises UserError."""
    if args.model not in CONFIGS:
        raise UserError(f"--model {args.model}: choose {', '.join(CONFIGS)}")
    args.config = CONFIGS[args.model]
    if args.warmup >= args.steps:
        raise UserError(f"--warmup {args.warmup} of --steps {args.steps} leaves no step to time")
    longest = args.config.block_size
    if args.seq_len != "auto" and args.seq_len > longest:
        raise UserError(f"--seq-len {args.seq_len}: {args.model} takes {longest} tokens at most")
    here = ranks.from_environment()
    vars(args).update(here._asdict(), patience=ranks.PATIENCE)
    args.hardware = hardware.choose(args.device, here.local_rank, here.local_world_size)
    args.device = args.hardware.torch_device
    args.backend = "nccl" if args.device.type == "cuda" else "gloo"
    given = {"batch_size": args.batch_size, "seq_len": args.seq_len}
    args.auto = [name for name, value in given.items() if value == "auto"]
    args.batch_size, args.seq_len = hardware.auto_shape(
        args.hardware,
        args.config,
        args.config.parameters(),
        **{name: value for name, value in given.items() if name not in args.auto},
        ranks=args.world_size,
    )
    if args.batch_size % args.world_size:
        fits = args.world_size * -(-args.batch_size // args.world_size)
        raise UserError(
            f"--batch-size {args.batch_size}: {args.world_size} ranks cannot share it evenly; "
            f"try --batch-size {fits}"
        )


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


# The measured loop ------------------------------------------------------------------------------


class Run:
    """One measured training run. Its rows are appended when the `with` block ends well.

    model, optimizer: what is trained; read for the record, never touched.
    """

    def __init__(self, args, model, optimizer):
        self.args, self.model, self.optimizer = args, model, optimizer
        self.marks, self.data_ms, self.losses = [], [], []
        self.operators, self.gradients = OperatorWatch(), record.GradientWatch(model)
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
            print(_headline(args), file=sys.stderr)
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
                    self.before, self.compiled = counters(), record.compiled_graphs()
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
            record.memory(args.hardware, self.model, self.optimizer, *watched),
            (self.before, after, readings),
            bool(args.warmup and record.compiled_graphs() > self.compiled),
            record.updated(self.model, self.optimizer),
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
        if graded["reasons"]:
            args.notes.append(f"tainted: {' and '.join(graded['reasons'])}")
        constant = {
            **_row(args, "ok"),
            "first_step_s": round(times[0] / 1e3, 4),
            "peak_memory_mib": memory["peak_mib"],
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
            **_record(args, "ok"),
            "dataset_facts": self.dataset_facts,
            **record.training(self.model, self.optimizer, [one.updated for one in everyones]),
            "attention_backend": backend,
            "memory": memory,
            "compile": record.compilation(),
            "limits": limits.describe(args),
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
        _write(args, rows, known)
        print(_last_line(args, rows))

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


class OperatorWatch:
    """Which scaled_dot_product_attention really ran, and the `most` bytes that the step had
    allocated on the host and not freed, beyond what was there when it began (None where no step was
    watched), from a profiler's list of operators.

    It watches the second step, where that and the third are warm-up, so the measured ones never
    feel it. Compiled code calls the same operators and is seen too. The profiler is torch's legacy
    one: the other, Kineto, stays attached to a GPU's driver when it has ended, at a cost to every
    later launch, and once started for the host alone sees no GPU in that process any more.
    """

    ATTENTION = (
        ("flash", "_scaled_dot_product_flash_attention"),
        ("memory-efficient", "_scaled_dot_product_efficient_attention"),
        ("cuDNN", "_scaled_dot_product_cudnn_attention"),
        ("overrideable", "_scaled_dot_product_fused_attention_overrideable"),
        ("math", "_scaled_dot_product_attention_math"),
    )

    def __init__(self):
        self.names = self.most = None

    def __enter__(self):
        # The host's allocator would log that what is freed was there before.
        self.log_level = _log_level()
        self.logged, self.log_level.value = self.log_level.value, 2  # errors
        # Neither shapes, nor stacks, FLOPs and modules; but memory.
        flags = (False, True, False, False, False, torch._C._profiler._ExperimentalConfig())
        config = torch.autograd.ProfilerConfig(torch.autograd.ProfilerState.CPU, *flags)
        torch.autograd._enable_profiler_legacy(config)

    def __exit__(self, *error):
        events = [*chain(*torch.autograd._disable_profiler_legacy())]  # a list a thread
        self.log_level.value = self.logged
        self.names = {event.name() for event in events}
        changes = (e.cpu_memory_usage() for e in events if e.kind() == "memory_alloc")
        self.most = max(accumulate(changes, initial=0))

    def backend(self):
        """flash, memory-efficient, cuDNN or math, several joined by +; "none" where the step
        called no scaled_dot_product_attention; None where no step was watched."""
        if self.names is None:
            return None
        found = [
            backend
            for backend, operator in self.ATTENTION
            if any(operator in name and "backward" not in name for name in self.names)
        ]
        return "+".join(found) or "none"


def _log_level():
    """From which severity on torch's C++ code logs, as a number that can be set; where it cannot
    be had, one without effect."""
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    return ctypes.c_int()


class Progress:
    """A bar on a terminal, a line every ten seconds elsewhere, on stderr.

    Costs a step one look at the clock; it draws at most four times a second, right after a
    boundary, from what the host knows already.
    """

    def __init__(self, args, model):
        self.args = args
        self.interval = 0.25 if sys.stderr.isatty() else 10
        compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None)
        self.first = "compiling, first step" if compiled else "first step"
        self.tokens = args.batch_size * args.seq_len

    def __enter__(self):
        self.bar = tqdm(
            total=self.args.steps,
            disable=None if self.args.rank == 0 else True,
            leave=False,
            miniters=1,
            mininterval=0,
            bar_format="{desc} {bar:20} {n_fmt}/{total_fmt} {postfix} [{elapsed}<{remaining}]",
            desc=self.args.technique,
            postfix=self.first,
        )
        if self.bar.disable and self.args.rank == 0:
            print(f"  {self.first} ...", file=sys.stderr)
        self.drawn_at, self.drawn_step = time.perf_counter(), 0
        return self

    def show(self, step, losses):
        now = time.perf_counter()
        if self.args.rank or (now - self.drawn_at < self.interval and step):
            return
        step_s = (now - self.drawn_at) / (step + 1 - self.drawn_step)
        text = f"{step_s * 1e3:,.1f} ms  {self.tokens / step_s:,.0f} tokens/s"
        if losses and isinstance(losses[-1], float):  # a tensor would have to be waited for
            text += f"  loss {losses[-1]:.3f}"
        self.drawn_at, self.drawn_step = now, step + 1
        if self.bar.disable:
            print(f"  step {step + 1}/{self.args.steps}  {text}", file=sys.stderr)
        else:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step + 1 - self.bar.n)

    def __exit__(self, *error):
        self.bar.close()


# What is recorded -------------------------------------------------------------------------------


def _row(args, status):
    """The columns that all rows of a run share."""
    return {
        **dict.fromkeys(results.COLUMNS),
        "run_id": args.run_id,
        "round": args.round,
        "technique": args.technique,
        "status": status,
        "batch_size": args.batch_size,
        "seq_len": args.seq_len,
        "model": args.model,
        "dataset": args.dataset,
        "world_size": args.world_size,
        "device": args.hardware.name,
        "torch": torch.__version__,
        "commit": args.commit,
        "note": "; ".join(args.notes),
    }


def _record(args, status):
    """What else is to be known about a run, for runs/<run_id>.json."""
    return {
        "run_id": args.run_id,
        "technique": args.technique,
        "status": status,
        "started": args.started.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
        "command": [args.technique, *map(str, args.argv)],
        "settings": {
            name: getattr(args, name)
            for name in ("steps", "warmup", "batch_size", "seq_len", "model", "dataset", "seed")
        },
        "chosen_automatically": args.auto,
        "round": args.round,
        "suite": os.environ.get("SUITE"),
        "commit": args.commit,
        "device": args.hardware.describe(),
        **record.environment(),
        "source": args.source,
        "notes": args.notes,
    }


def _write(args, rows, known):
    """Rows and record, or, where either cannot be written, a UserError and neither."""
    path = args.results_file.parent / "runs" / f"{args.run_id}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(known, indent=1, default=str) + "\n")
        results.append(args.results_file, rows)
    except (OSError, UserError) as error:
        path.unlink(missing_ok=True)
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: {error.strerror}; nothing was recorded") from None


def record_ended(args, status, reason):
    """Appends the one row of a run that has no timing, and says why on stderr."""
    reason = textwrap.shorten(reason, 300, placeholder=" ...")
    # A batch that the technique chose by itself still has to be told from the one asked for.
    args.notes = [*(note for note in args.notes if note.startswith("own batch: ")), reason]
    print(f"{args.technique}: {status.replace('_', ' ')}: {reason}", file=sys.stderr)
    _write(args, [_row(args, status)], _record(args, status))


def _ended_early(args, error, trace):
    """The end of a script that raised: one line and, except for bad input, one row."""
    if args.world_size > 1:
        _rank_ended(args, error, trace)
    try:
        if isinstance(error, KeyboardInterrupt):
            print(f"\n{args.technique}: interrupted; nothing was recorded", file=sys.stderr)
            atexit._run_exitfuncs()  # the signal skips them, and they end a loader's workers
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # end as the signal would have it
            os.kill(os.getpid(), signal.SIGINT)
        if isinstance(error, UserError):
            raise error
        if isinstance(error, Unsupported):
            record_ended(args, "unsupported", str(error))
            raise SystemExit(0)
        if hardware.is_out_of_memory(error):
            record_ended(args, "out_of_memory", _advice_on_memory(args))
            raise SystemExit(1)
        traceback.print_exception(type(error), error, trace)  # a bug: whoever wrote it wants it
        record_ended(args, "failed", f"{type(error).__name__}: {error}")
        raise SystemExit(1)
    except UserError as problem:
        print(f"{args.technique}: error: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


def _rank_ended(args, error, trace):
    """The end of one of several ranks that raised: one line, from it or from whoever started it,
    and no row, except where the technique is unsupported."""
    name, nothing = f"{args.technique}: rank {args.rank}", "nothing was recorded"
    if isinstance(error, KeyboardInterrupt):
        ranks.end(130)
    if what := ranks.noticed(error):
        waited = f"waited {ranks.PATIENCE_S:g} s for another rank"
        what_it_saw = waited if what == "late" else "lost another rank"
        ranks.report(f"{name} {what_it_saw}; {nothing}", what)
        time.sleep(ranks.GRACE_S)
        ranks.end(ranks.NOTICED)
    if args.rank:  # what happens to all of them, as bad input does, rank 0 tells when it gets there
        time.sleep(ranks.PATIENCE_S / 3 if isinstance(error, UserError) else ranks.GRACE_S)
    if isinstance(error, Unsupported):
        if args.rank == 0:
            record_ended(args, "unsupported", str(error))
        ranks.end(0)
    code, line = 1, f"{name}: failed: {type(error).__name__}: {error}; {nothing}"
    if isinstance(error, UserError):
        code, line = 2, f"{args.technique}: error: {error}"
    elif hardware.is_out_of_memory(error):
        line = f"{name}: out of memory: {_advice_on_memory(args)}; {nothing}"
    else:
        traceback.print_exception(type(error), error, trace)
    ranks.report(line)
    print(line, file=sys.stderr)
    ranks.end(code)


def _advice_on_memory(args):
    several = f" on {args.world_size} ranks" if args.world_size > 1 else ""
    shape = f"{args.batch_size}x{args.seq_len} does not fit {args.hardware.name}{several}"
    if args.batch_size > args.world_size:
        half = args.batch_size // args.world_size // 2 * args.world_size
        return f"{shape}; try --batch-size {half}"
    if args.seq_len > 1:
        return f"{shape}; try --seq-len {args.seq_len // 2}"
    return f"{shape}; try a smaller --model"


def _commit():
    """Short hash of the project's commit, with -dirty where code differs from it; "" without git.
    Results and plots may differ: runs write them."""

    def git(*command):
        command = ["git", "-C", str(ROOT), *command]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        ours = [f":(exclude){path}" for path in ("*.csv", "*.zip", "plots", "runs", "results")]
        dirty = "-dirty" if git("status", "--porcelain", "--", ".", *ours) else ""
        return git("rev-parse", "--short=7", "HEAD") + dirty
    except (OSError, subprocess.CalledProcessError):
        return ""


def _headline(args):
    auto = " (chosen for this device)" if args.auto else ""
    several = f" and {args.world_size - 1} more like it" if args.world_size > 1 else ""
    return (
        f"{args.technique} on {args.hardware.name}{several}: {args.model}, "
        f"{args.batch_size}x{args.seq_len} tokens a step{auto}, {args.dataset}, {args.steps} steps"
    )


def _last_line(args, rows):
    timed = [row["step_ms"] for row in rows if row["phase"] == "timed"]
    p20, median, p80 = np.percentile(timed, [20, 50, 80])
    tokens = args.batch_size * args.seq_len / median * 1e3
    note = f"  ({rows[0]['note']})" if rows[0]["note"] else ""
    return (
        f"{args.technique}: median {median:,.1f} ms (p20-p80 {p20:,.1f}-{p80:,.1f}), "
        f"{tokens:,.0f} tokens/s, first step {rows[0]['first_step_s']:.1f} s, "
        f"peak memory {rows[0]['peak_memory_mib']:,.0f} MiB, loss {rows[-1]['loss']:.3f}{note}"
    )


if __name__ == "__main__":  # python -m Utils.run NAME REASON flags: records a run that died mutely
    name, reason, *flags = sys.argv[1:]
    record_ended(parse_args("", flags, name), "failed", reason)
