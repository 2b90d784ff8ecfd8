"""Compare several processes of one script at once on one device with one process alone.

All begin their timed steps at the same moment, when the last has compiled and warmed up. Only the
work until the first has ended counts. No rows are written to results.csv, as such runs are not
comparable with others.
"""

import os
import secrets
import sys

from tools.together import at_once, rates
from Utils.base.command_line import RUN_SETTINGS, Parser, check, spelled
from Utils.base.errors import Unsupported, UserError, run_command
from Utils.scripts import variants
from Utils.scripts.ladder import repository


def main(*words):
    """Return the exit code: 0, or 1 if a process failed or ran out of memory."""
    args = Parser("together", __doc__, *RUN_SETTINGS, "timeout", "t", "n").parse_args(words)
    check(args)
    if not args.warmup:
        problem = f"{spelled('warmup', 0)}: processes need a warm-up to begin together"
        raise UserError(problem, f"try {spelled('warmup', 1)}")

    technique = variants.find(args.t, repository())
    os.environ["SUITE_ID"] = f"together-{secrets.token_hex(4)}"  # a batch size is searched once
    try:
        print(rates.report(technique, *at_once.measure(technique, args)))
    except (Unsupported, at_once.ProcessFailed) as error:
        print(f"together: {error}", file=sys.stderr)
        return int(isinstance(error, at_once.ProcessFailed))
    return 0


if __name__ == "__main__":
    run_command("together", main)
