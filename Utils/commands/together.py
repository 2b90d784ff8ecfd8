"""Several processes of one script at once on one device, against one process alone.

    python -m Utils.commands.together NAME [--n 2] [flags of the scripts]

All of them begin their timed steps at the same moment, when the last has compiled and warmed up;
from then until the first has ended, all train, and what they get done in that time is what counts.
Their rows go to files of scratch: a run beside others of its kind is no row for results.csv.
"""

import os
import secrets
import sys

from Utils.analysis import throughput
from Utils.base import command_line, errors, ladder, variants
from Utils.base.command_line import Parser
from Utils.base.errors import Unsupported, UserError
from Utils.launch import together
from Utils.launch.together import Failed


def main(argv=None):
    """Run several processes of a technique at once and one alone, in rounds, and print the speedup.
    Returns the exit code: 0, or 1 where a process failed or did not fit into memory."""
    parser = Parser("together", __doc__)
    command_line.add_settings(parser)
    command_line.add_timeout(parser)
    add = parser.add_argument
    add("name", nargs="?", default="", help="a technique")
    add("--n", type=command_line.at_least(2), default=2, help="processes at once")
    args = parser.parse_args(argv)
    if not args.name:
        raise UserError(f"T=NAME says what: one of {', '.join(ladder.techniques())}")
    if not args.warmup:
        raise UserError("--warmup 0: all begin together when the last has warmed up; 1 is enough")
    technique = variants.find(args.name)
    os.environ["SUITE"] = f"together-{secrets.token_hex(4)}"  # a batch found is found once
    try:
        print(throughput.report(technique, *together.measure(technique, args)))
    except (Unsupported, Failed) as error:
        print(f"together: {error}", file=sys.stderr)
        return int(isinstance(error, Failed))
    return 0


if __name__ == "__main__":
    with errors.one_line("together"):
        sys.exit(main())
