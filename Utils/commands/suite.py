"""Many scripts, many rounds, one process each.

    python -m Utils.commands.suite [TECHNIQUE ...] [flags of the scripts]

Without names it runs the ladder; `beyond` stands for all of beyond/ with the baseline and their
parents, `everything` for all there is, `ablation` for what `make ablate` runs. Rounds are
interleaved; what was interrupted goes on where it was. With --round it begins at that round, so
that it adds rounds to others instead of repeating them. Ends with one table.
"""

import sys
from functools import partial

from Utils.base import command_line, errors
from Utils.base.command_line import Parser
from Utils.launch import suite


def main(argv=None):
    """Run techniques and print their table. Returns the exit code of `suite.Outcome`."""
    parser = Parser("suite", __doc__)
    command_line.add_settings(parser)
    command_line.add_timeout(parser)
    parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="else the ladder")
    args = parser.parse_args(argv)
    techniques = suite.named(args.names or ["ladder"])
    outcome = suite.run(techniques, args, partial(print, file=sys.stderr, flush=True))
    if said := suite.table(outcome, args.results_file):
        print(said)
    return outcome.code


if __name__ == "__main__":
    with errors.one_line("suite"):
        sys.exit(main())
