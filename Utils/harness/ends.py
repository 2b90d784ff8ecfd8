"""Ends of a run other than a good one."""

import atexit
import os
import signal
import sys
import textwrap
import time
import traceback

from Utils.base.errors import Unsupported, UserError
from Utils.device import devices
from Utils.harness import ranks, record
from Utils.harness.ranks import GRACE_S, NOTICED


def record_ended(args, status, reason):
    """Appends the one row of a run that has no timing, and says why on stderr."""
    reason = textwrap.shorten(reason, 300, placeholder=" ...")
    args.notes = [reason]
    print(f"{args.technique}: {status.replace('_', ' ')}: {reason}", file=sys.stderr)
    record._write(args, [record._row(args, status)], record._record(args, status))


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
        if devices.is_out_of_memory(error):
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
        time.sleep(GRACE_S)
        ranks.end(NOTICED)
    if args.rank:  # what happens to all of them, as bad input does, rank 0 tells when it gets there
        time.sleep(ranks.PATIENCE_S / 3 if isinstance(error, UserError) else GRACE_S)
    if isinstance(error, Unsupported):
        if args.rank == 0:
            record_ended(args, "unsupported", str(error))
        ranks.end(0)
    code, line = 1, f"{name}: failed: {type(error).__name__}: {error}; {nothing}"
    if isinstance(error, UserError):
        code, line = 2, f"{args.technique}: error: {error}"
    elif devices.is_out_of_memory(error):
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
