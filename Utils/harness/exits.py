"""The end of a script: an exception becomes a row, or one line and an exit code."""

import sys
import textwrap
import time
import traceback

from Utils.base.errors import Unsupported, UserError
from Utils.device import auto_shape, device_choice
from Utils.harness import ranks, run_record
from Utils.results import rows_file


def call(main, args, passes=lambda error: False):
    """Call main(args); end the process where it raises.

    Exit codes: 0 with a row for Unsupported; 1 with a row for out of memory and for any other
    exception, after its traceback; 2 and no row for a UserError; 130 and no row for Ctrl-C.
    passes: function of an exception that is true where the caller handles it.
    """
    try:
        main(args)
    except (Exception, KeyboardInterrupt) as error:
        if passes(error):
            raise
        sys.exit(_end_rank(args, error) if args.world_size > 1 else _end(args, error))
    finally:
        ranks.leave()


def record_end(args, status, reason):
    """Append the single row of a run without timing, and print the reason to stderr."""
    args.notes = [textwrap.shorten(reason, 300, placeholder=" ...")]
    print(f"{args.technique}: {status.replace('_', ' ')}: {args.notes[0]}", file=sys.stderr)
    record = run_record.record(args, status)
    rows_file.append(args.results_file, [run_record.row(args, status)], record)


def _end(args, error):
    """Write the row, and return the exit code."""
    try:
        if isinstance(error, KeyboardInterrupt):
            print(f"\n{args.technique}: interrupted; nothing was recorded", file=sys.stderr)
            return 130
        if isinstance(error, UserError):
            raise error
        if isinstance(error, Unsupported):
            record_end(args, "unsupported", str(error))
            return 0
        if device_choice.is_out_of_memory(error):
            record_end(args, "out_of_memory", _advice_on_memory(args))
            return 1
        traceback.print_exception(error)  # a bug: its author needs it
        record_end(args, "failed", f"{type(error).__name__}: {error}")
        return 1
    except UserError as problem:
        print(f"{args.technique}: error: {problem}", file=sys.stderr)
        return 2


def _end_rank(args, error):
    """End one of several ranks immediately: one line, by it or by the launcher.

    Only an unsupported technique leaves a row.
    """
    rank = f"{args.technique}: rank {args.rank}"
    nothing = "nothing was recorded"
    patience_s = args.patience.total_seconds()
    if isinstance(error, KeyboardInterrupt):
        ranks.end(130)
    if noticed := ranks.noticed(error):
        late = f"waited {patience_s:g} s for another rank"
        ranks.report(
            f"{rank} {late if noticed == 'late' else 'lost another rank'}; {nothing}", noticed
        )
        time.sleep(ranks.GRACE_S)
        ranks.end(ranks.NOTICED)
    if args.rank:  # bad input fails on all ranks: let rank 0 report it
        time.sleep(patience_s / 3 if isinstance(error, UserError) else ranks.GRACE_S)
    if isinstance(error, Unsupported):
        if args.rank == 0:
            record_end(args, "unsupported", str(error))
        ranks.end(0)
    if isinstance(error, UserError):
        line = f"{args.technique}: error: {error}"
    elif device_choice.is_out_of_memory(error):
        line = f"{rank}: out of memory: {_advice_on_memory(args)}; {nothing}"
    else:
        line = f"{rank}: failed: {type(error).__name__}: {error}; {nothing}"
        traceback.print_exception(error)
    ranks.report(line)
    print(line, file=sys.stderr)
    ranks.end(2 if isinstance(error, UserError) else 1)


def _advice_on_memory(args):
    several = f" on {args.world_size} ranks" if args.world_size > 1 else ""
    shape = f"{args.batch_size}x{args.seq_len} does not fit {args.hardware.name}{several}"
    if args.batch_size > args.world_size:
        B = args.batch_size // args.world_size // 2
        while B > 1 and args.device.type == "cuda" and not _baseline_fits(args, B):
            B //= 2
        return f"{shape}; try --batch-size {B * args.world_size}"
    if args.seq_len > 1:
        return f"{shape}; try --seq-len {args.seq_len // 2}"
    return f"{shape}; try a smaller --model"


def _baseline_fits(args, batch_size):
    size = auto_shape.baseline_bytes(
        args.config, args.config.parameters(), batch_size, args.seq_len
    )
    return size <= auto_shape.usable_bytes(args.hardware.memory_bytes)
