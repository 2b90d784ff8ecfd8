"""The end of a script: an exception becomes a row, or one line and an exit code."""

import os
import sys
import textwrap
import time
import traceback

from Utils.base.errors import Unsupported, UserError
from Utils.device import device_choice
from Utils.harness import ranks, run_record
from Utils.harness.settings import parse_args
from Utils.scripts import anatomy, bases
from Utils.scripts.ladder import BASELINE


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


def outside(script, error):
    """Record an exception that a script raised outside of its main function.

    script: its path. Return the exit code, as `call` has it. Raises UserError where it cannot be
    read.
    """
    try:
        source = script.read_text()
    except OSError as problem:
        raise UserError(f"{script}: {problem.strerror}") from None
    node = anatomy.read(source, script).docstring
    return _end(parse_args(node and node.value.value), error)


def record_end(args, status, reason, error=None):
    """Append the single row of a run without timing, and print the reason to stderr.

    error: an exception whose traceback goes into the record.
    """
    args.notes = [textwrap.shorten(reason, 300, placeholder=" ...")]
    print(f"{args.technique}: {status.replace('_', ' ')}: {args.notes[0]}", file=sys.stderr)
    record = run_record.record(args, status)
    if error is not None:
        record["traceback"] = traceback.format_exception(error)
    run_record.write(args, [run_record.row(args, status)], record)


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
        reason = f"{type(error).__name__}: {error}"
        if args.base != BASELINE and os.environ.get("SUITE"):  # one line of many
            record_end(args, "failed", reason + _line_of_script(error), error)
        else:
            traceback.print_exception(error)  # a bug: its author needs it
            record_end(args, "failed", reason)
        return 1
    except UserError as problem:
        print(f"{args.technique}: error: {problem}", file=sys.stderr)
        return 2


def _line_of_script(error):
    """Return the last line of the script that an exception passed, as " (my_model.py, line 9)"."""
    frames = traceback.extract_tb(error.__traceback__)
    in_script = [frame for frame in frames if frame.filename == sys.argv[0]] or frames[-1:]
    if not in_script:
        return ""
    return f" ({os.path.basename(in_script[-1].filename)}, line {in_script[-1].lineno})"


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
    if bases.OWN_DATA in args.owns:
        return f"its batch does not fit {args.hardware.name}; make it smaller in the script"
    several = f" on {args.world_size} ranks" if args.world_size > 1 else ""
    shape = f"{args.batch_size}x{args.seq_len} does not fit {args.hardware.name}{several}"
    if args.batch_size > args.world_size:
        half = args.batch_size // args.world_size // 2 * args.world_size
        return f"{shape}; try --batch-size {half}"
    if args.seq_len > 1:
        return f"{shape}; try --seq-len {args.seq_len // 2}"
    return f"{shape}; try a smaller --model"
