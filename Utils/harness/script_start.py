"""The start of a script: its settings, its needs, and its main function."""

import signal
from contextlib import contextmanager
from functools import partial

from Utils.base.errors import Unsupported, UserError
from Utils.device import capabilities
from Utils.harness import exits, log_filters, ranks
from Utils.harness.settings import check_needs, parse_args
from Utils.scripts import ladder, variants


def run_script(main, doc, passes=lambda error: False):
    """Run a training script from the command line.

    main: function of the Settings. doc: the script's docstring, for --help and for its needs.
    An exception ends the process with a row or one line: see `exits.call`, as for `passes`.
    """
    exits.call(partial(start, main), parse_args(doc), passes)


def start(main, args):
    """Check the needs of a script and call its main function."""
    if "bfloat16" in args.needs and not capabilities.has("bfloat16", args.hardware):
        main = _in_float16(args) or main
    log_filters.prepare(main)
    check_needs(args)
    if "distributed" in args.needs:
        ranks.stand_alone()
    elif args.world_size > 1:
        raise UserError(
            "this script does not support several ranks",
            "use one with distributed among its Needs, such as distributed_data_parallel",
        )
    main(args)


def _in_float16(args):
    """Return the main function of a script merged onto the line in float16; None of a variant."""
    with ladder.on_device(bfloat16=False):
        technique = ladder.techniques().get(args.technique)
    if technique is None:
        return None
    args.needs, args.source = technique.needs, technique.code
    if technique.misfit:
        check_needs(args)
        raise Unsupported(technique.misfit)
    args.notes.append(technique.note)
    return variants.load(technique.code)


@contextmanager
def uninterrupted():
    """Delay Ctrl-C until the end of the block."""
    pressed = []
    interrupt = signal.signal(signal.SIGINT, lambda *caught: pressed.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if pressed:
        raise KeyboardInterrupt
