"""Run many scripts in many rounds, one process each.

    python -m Utils.commands.suite [TECHNIQUE ...] [flags of the scripts]

Without names it runs the ladder. `beyond` is all of beyond/ with the baseline and their parents,
`everything` all techniques, `ablation` the runs of `make ablate`. Rounds are interleaved, and an
interrupted suite resumes. --round sets the first round, to add rounds to existing ones.
"""

import sys
from functools import partial

from Utils.base import errors
from Utils.base.command_line import Parser
from Utils.launch import suite_runner


def main(argv=None):
    """Run techniques and print their table. Return the exit code of `suite.Outcome`."""
    parser = Parser("suite", __doc__)
    suite_runner.add_arguments(parser)
    args = parser.parse_args(argv)
    say = partial(print, file=sys.stderr, flush=True)
    base, techniques, without = suite_runner.asked(args)
    if base:
        outcome = suite_runner.run_base(base, techniques, args, say, without)
    else:
        outcome = suite_runner.run(techniques, args, say)
    if table := suite_runner.table(outcome, args.results_file, base is None):
        print(table)
    return outcome.code


if __name__ == "__main__":
    with errors.one_line("suite"):
        sys.exit(main())
