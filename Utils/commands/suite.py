"""Run many scripts in many rounds, one process each.

    python -m Utils.commands suite [TECHNIQUE ...] [SETTING=value ...]

Without names it runs the ladder. `beyond` is all of beyond/ with the baseline and their parents,
`everything` all techniques, `ablation` the runs of `make ablate`. Rounds are interleaved, and an
interrupted suite resumes. ROUND sets the first round, to add rounds to existing ones.
"""

from Utils.base import command_line
from Utils.base.setting_table import OF_A_RUN
from Utils.launch import suite_runner, suite_start
from Utils.launch.suite_runner import say
from Utils.scripts import bases


def main(argv=None):
    """Run techniques and print their table. Return the exit code of `suite_runner.Outcome`."""
    names = (*OF_A_RUN, "timeout", "precision", "base", "without")
    parser = command_line.Parser("suite", __doc__, *names)
    parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="else the ladder")
    help = "before, measure the ceilings of this device and estimate the duration"
    parser.add_argument("--announced", action="store_true", help=help)
    args = parser.parse_args(argv)
    command_line.check(args)
    base, techniques, without = suite_runner.asked(args)
    if args.announced:
        scripts = bases.ladder_of(base, techniques, without) if base else techniques
        if code := suite_start.announce(scripts, args, base):
            return code
    if base:
        outcome = suite_runner.run_base(base, techniques, args, say, without)
    else:
        outcome = suite_runner.run(techniques, args, say)
    if table := suite_runner.table(outcome, args.results_file, base is None):
        print(table)
    return outcome.code
