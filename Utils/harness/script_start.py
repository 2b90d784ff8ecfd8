"""The start of a script: its settings, its needs, and its main function."""

import signal
from contextlib import contextmanager
from functools import partial

from Utils.base.errors import UserError
from Utils.harness import exits, log_filters, ranks
from Utils.harness.settings import check_needs, parse_args


def run_script(main, doc, passes=lambda error: False):
    """Run a training script from the command line.

    main: function of the Settings. doc: the script's docstring, for --help and for its needs.
    An exception ends the process with a row or one line: see `exits.call`, as for `passes`.
    """
    exits.call(partial(start, main), parse_args(doc), passes)


def start(main, args):
    """Check the needs of a script and call its main function."""
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
