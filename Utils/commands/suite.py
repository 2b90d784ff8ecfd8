"""Run many scripts in many rounds, one process each.

    make all [T="TECHNIQUE ..."] [SETTING=value ...]

T names scripts, variants or groups: `ladder`, the default, `beyond`, which is all of beyond/ with
the baseline and their parents, `everything`, and `ablation`, the runs of `make ablate`. Names
without T= are the same. Rounds are interleaved, and an interrupted suite resumes. ROUND sets the
first round, to add rounds to existing ones. With BASE it runs a script of your own, unchanged, with
switches.
"""

from Utils.analysis import result_tables
from Utils.base import command_line, tool_packages
from Utils.base.command_line import SUITE_SETTINGS, Parser
from Utils.launch import suite_runner
from Utils.launch.schedule import Schedule

UNBOUNDED = {"beyond", "everything", "ablation"}  # groups that take hours


def main(*words):
    """Run techniques and print their table. Return the exit code of `suite_runner.Outcome`."""
    parser = Parser("suite", __doc__, *SUITE_SETTINGS)
    parser.add_argument("names", nargs="*", metavar="TECHNIQUE", help="default: the ladder")
    help = "before, measure the ceilings of this device and estimate the duration"
    parser.add_argument("--announced", action="store_true", help=help)
    args = parser.parse_args(words)
    command_line.check(args)

    args.names = args.t.split() or args.names or ["ladder"]
    is_group = UNBOUNDED & {*args.names}
    minutes = None if is_group and args.minutes == "auto" else command_line.minutes(args)
    schedule = Schedule(args, minutes)
    with suite_runner.only_suite(args.results_file):
        if args.base:
            own_suite = tool_packages.load("own_script", "own_suite", f"BASE={args.base}")
            outcome = own_suite.run(args, schedule)
        else:
            ladder = suite_runner.ladder_of_device(args)
            ladder = suite_runner.techniques_named(args.names, ladder)
            if args.announced:
                suite_runner.in_child("announce", ladder, args, minutes)
            outcome = suite_runner.run(ladder, args, schedule)
        if outcome.rows is None:
            return outcome.code
        if len(outcome.rows):
            print(f"\n{result_tables.table(outcome.summary, all_columns=args.all)}")
        if not args.base:
            count = outcome.rows.technique[outcome.rows.status == "ok"].nunique()
            print(f"\n{count} of {len(ladder)} run")
    return outcome.code
