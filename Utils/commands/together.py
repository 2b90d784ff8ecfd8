"""Compare several processes of one script at once on one device with one process alone.

All begin their timed steps at the same moment, when the last has compiled and warmed up. Only the
work until the first has ended counts. No rows are written to results.csv, as such runs are not
comparable with others.
"""

import os
import secrets
import sys

from Utils.analysis import several_processes
from Utils.base.command_line import spelled
from Utils.base.errors import Unsupported, UserError
from Utils.launch import turn_taking
from Utils.scripts import variants
from Utils.scripts.ladder import repository


def main(args):
    """Return the exit code: 0, or 1 if a process failed or ran out of memory."""
    if not args.warmup:
        problem = f"{spelled('warmup', 0)}: processes need a warm-up to begin together"
        raise UserError(problem, f"try {spelled('warmup', 1)}")

    technique = variants.find(args.t, repository())
    os.environ["SUITE_ID"] = f"together-{secrets.token_hex(4)}"  # a batch size is searched once
    try:
        print(several_processes.report(technique, *turn_taking.measure(technique, args)))
    except (Unsupported, turn_taking.ProcessFailed) as error:
        print(f"together: {error}", file=sys.stderr)
        return int(isinstance(error, turn_taking.ProcessFailed))
    return 0
