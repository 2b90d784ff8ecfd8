"""Run every script and variant of an ablation, print its table and draw plots/ablation.

Next: make recipe
"""

from contextlib import ExitStack

from Utils.analysis import attribution, result_tables
from Utils.base import tool_packages
from Utils.base.command_line import SUITE_SETTINGS, Parser, check
from Utils.base.errors import UserError
from Utils.draw import chart_style, ratio_charts
from Utils.launch import suite_runner
from Utils.launch.schedule import Schedule
from Utils.scripts import variants


def main(*words):
    """Return the exit code of `suite_runner.Outcome`."""
    args = Parser("ablate", __doc__, *SUITE_SETTINGS, "plotsprefix").parse_args(words)
    check(args)
    schedule = Schedule(args, None if args.minutes == "auto" else args.minutes)
    with suite_runner.only_suite(args.results_file), ExitStack() as block:
        if args.base:
            own_suite = tool_packages.load("own_script", "own_suite", f"BASE={args.base}")
            ablated, ladder = block.enter_context(own_suite.ablation(args))
        else:
            repository = suite_runner.ladder_of_device(args)
            ablated = args.t or repository.last_rung()
            if repository.get(ablated).parent is None:
                raise UserError(
                    f"{ablated} has no technique that could be left out", "name another"
                )
            ladder = variants.ablation(ablated, repository)
            suite_runner.in_child("announce", ladder, args, schedule.minutes)

        outcome = suite_runner.run(ladder, args, schedule)
        if outcome.code > 1:
            return outcome.code
        summary = outcome.summary
        print(f"\n{result_tables.table(summary, all_columns=args.all)}\n")

        credits = attribution.credits_of(summary, ablated)
        print(attribution.table(credits))
        chart = ratio_charts.ablation(summary.study.all_rows, credits, ablated)
        chart_style.save(chart, summary.study.chart(f"{args.plotsprefix}ablation"))
    return outcome.code
