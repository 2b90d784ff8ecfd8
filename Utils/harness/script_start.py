"""Start and end of a script: its settings, its needs, its main function, and its exit code."""

import functools
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable

from torch._functorch import config as functorch

from Utils.base import paths
from Utils.base.errors import Unsupported, UserError, say
from Utils.device import device_choice
from Utils.harness import ranks, run_record
from Utils.harness.settings import Settings, check_needs, parse_args
from Utils.results import rows_file
from Utils.scripts import variants

NOTHING = "ended without a result, before the end of its `with Run` block"
# Messages that are wrong or noisy here. All others are shown.
WARNINGS = (
    ".*Please use the new API settings to control TF32",
    r"\s*(Online softmax is disabled on the fly|Warning: Profiler clears events)",
    "Paged optimizers are not supported on CPU",  # a note of the run says so
)
LOGGERS = (
    "bitsandbytes.backends.cpu.ops",  # an optional package is missing
    "torch._dynamo.variables.ctx_manager",  # profiler ranges of DistributedDataParallel
    "torch._higher_order_ops.wrap",  # selective checkpointing: no in-place operations
    "torch.utils._pytree",  # torchao calls a deprecated function
    "torch.utils.cpp_extension",  # a CUDA toolkit without a GPU
    "torchao",  # inference kernels built for another Python
)


def run_script(
    main: Callable[[Settings], None],
    doc: str | None,
    passes: Callable[[BaseException], bool] = lambda error: False,
    records: bool = True,
) -> None:
    """Run a training script from the command line. An exception of it ends the process.

    doc: the script's docstring, for --help and for its needs.
    passes: returns True for an exception that the caller handles.
    records: whether it has to record a result.
    Exit codes: 0 with a row for Unsupported; 1 with a row for out of memory, for a script without a
    result, and for any other exception, after its traceback; 2 and no row for a UserError; 130 and
    no row for Ctrl-C.
    """
    args = parse_args(doc)
    args.outcome.is_recorded = not records
    call(functools.partial(start, main), args, passes)


def call(
    main: Callable[[Settings], None],
    args: Settings,
    passes: Callable[[BaseException], bool] = lambda error: False,
) -> None:
    """Call main(args), and end the process as `run_script` does."""
    try:
        main(args)
        if not args.outcome.is_recorded:
            sys.exit(0)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit):
            is_for_caller = error.code or args.outcome.is_recorded
        else:
            is_for_caller = passes(error)
        if is_for_caller:
            raise
        sys.exit(_end_rank(args, error) if args.world_size > 1 else _end(args, error))
    finally:
        ranks.leave()


def start(main: Callable[[Settings], None], args: Settings) -> None:
    """Check the needs of a script and call its main function, or that of its substitute."""
    substitute = args.substitute
    if substitute:
        if substitute.misfit:
            check_needs(args)
            raise Unsupported(substitute.misfit)
        args.outcome.notes.append(substitute.note)
        main = variants.load(substitute.code)
    prepare(main)
    check_needs(args)

    if "distributed" in args.needs:
        ranks.stand_alone()
    elif args.world_size > 1:
        raise UserError(
            "this script does not support several ranks",
            "use one with distributed among its Needs, such as distributed_data_parallel",
        )
    main(args)


def prepare(main: Callable[[Settings], None]) -> None:
    """Keep compiled kernels in the project's cache, and silence noisy messages.

    main: its module's functions are inspected.
    """
    os.environ |= paths.kernel_variables()
    functions = getattr(main, "__globals__", {}).values()
    if any(getattr(function, "_torchdynamo_disable", False) for function in functions):
        # Such a function ends a graph, which may return two views of one tensor. From AOTAutograd's
        # cache they come with sizes of freed memory (torch 2.13): the second run fails.
        functorch.enable_autograd_cache = False

    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler logs its start
    for message in WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def _ending(args, error):
    """Return (status, reason, exit code) of a run that an exception ends.

    The status is "" if the run gets no row.
    """
    if isinstance(error, KeyboardInterrupt):
        return "", "interrupted", 130
    if isinstance(error, UserError):
        return "", f"error: {error}", 2
    if isinstance(error, Unsupported):
        return "unsupported", str(error), 0
    if isinstance(error, SystemExit):
        return "failed", NOTHING, 1
    if device_choice.is_out_of_memory(error):
        return "out_of_memory", _advice_on_memory(args), 1

    traceback.print_exception(error)  # a bug: its author needs it
    return "failed", f"{type(error).__name__}: {error}", 1


def _end(args, error):
    """Append the row of a run that an exception ends, or print the reason. Return the exit code.

    A run that was recorded before gets no second row.
    """
    status, reason, code = _ending(args, error)
    is_recorded = args.run_id in rows_file.run_ids(args.results_file)
    if status and not is_recorded:
        try:
            run_record.record_end(args, status, reason)
            return code
        except UserError as problem:  # the row could not be written
            return _end(args, problem)

    before = "\n" if code == 130 else ""  # after the terminal's ^C
    if is_recorded:
        reason += "; the rows of its run were recorded"
    elif code == 130:
        reason += "; nothing was recorded"
    say(f"{before}{args.technique}: {reason}", sys.stderr)
    return code


def _end_rank(args, error):
    """End one of several ranks immediately, with one line from it or from the launcher.

    Only an unsupported technique leaves a row.
    """
    rank = f"{args.technique}: rank {args.rank}"
    if isinstance(error, KeyboardInterrupt):
        ranks.end(130)

    # Another rank is at fault.
    noticed = ranks.noticed(error)
    if noticed:
        ranks.report(f"{rank}: another rank is {noticed}; nothing was recorded", noticed)
        time.sleep(ranks.GRACE_S)
        ranks.end(ranks.NOTICED)

    # Bad input fails on all ranks: let rank 0 report it.
    if args.rank:
        is_bad_input = isinstance(error, UserError)
        time.sleep(args.patience.total_seconds() / 3 if is_bad_input else ranks.GRACE_S)

    status, reason, code = _ending(args, error)
    if status == "unsupported":
        if args.rank == 0:
            run_record.record_end(args, status, reason)
        ranks.end(code)
    line = f"{args.technique}: {reason}"
    if status:
        line = f"{rank}: {status.replace('_', ' ')}: {reason}; nothing was recorded"
    ranks.report(line)
    print(line, file=sys.stderr)
    ranks.end(code)


def _advice_on_memory(args):
    """Return the reason of a run that is out of memory, and a smaller shape to try."""
    several = f" on {args.world_size} ranks" if args.world_size > 1 else ""
    problem = f"{args.batch_size}x{args.seq_len} does not fit {args.hardware.name}{several}"

    if args.batch_size > args.world_size:
        B = args.batch_size // args.world_size // 2  # sequences of a rank
        room = device_choice.usable_bytes(args.hardware.memory_bytes)
        while B > 1 and device_choice.baseline_bytes(args.config, B, args.seq_len) > room:
            B //= 2
        return f"{problem}; try BATCH_SIZE={B * args.world_size}"

    if args.seq_len > 1:
        return f"{problem}; try SEQ_LEN={args.seq_len // 2}"
    return f"{problem}; try a smaller MODEL"
