"""Run every script and variant of an ablation, print its table and draw plots/ablation."""

from Utils.analysis import attribution
from Utils.base.command_line import Parser, check
from Utils.base.errors import UserError
from Utils.base.setting_table import OF_A_RUN
from Utils.commands.suite import OF_AN_OWN_SCRIPT
from Utils.draw import chart_style, ratio_charts
from Utils.launch import own_scripts, suite_runner, suite_start
from Utils.results import rows_file, selection
from Utils.scripts import ladder


def main(argv=None):
    """Return the exit code of `suite_runner.Outcome`."""
    names = (*OF_A_RUN, "timeout", "precision", "all", *OF_AN_OWN_SCRIPT, "plotsprefix", "t")
    args = Parser("ablate", __doc__, *names).parse_args(argv)
    check(args)
    with suite_runner.only_suite(args.results_file):
        if args.base:
            with own_scripts.looked_at(args) as runs:
                whole, scripts = runs.ablation()
                outcome = suite_runner.run(scripts, args, runs)
            return show(outcome, args, whole, runs.base.name)
        with suite_start.on_device(args):
            whole = args.t or attribution.last_rung()
            if ladder.get(whole).parent is None:
                raise UserError(f"{whole} has no technique that could be left out", "name another")
            scripts = suite_runner.named(attribution.plan(whole))
            suite_start.announce(scripts, args)
            outcome = suite_runner.run(scripts, args)
            return show(outcome, args, whole)


def show(outcome, args, whole, base=None):
    """Print the table of an ablation and draw its chart. Return the exit code."""
    if outcome.code > 1:
        return outcome.code
    print(suite_runner.table(outcome, args.results_file, all_columns=args.all))
    rows = rows_file.read(args.results_file)
    rows, left_out = selection.select(rows, with_variants=True, base=base)
    lines = attribution.credits(rows, whole)
    print("\n" + attribution.table(lines))
    chart_style.save(ratio_charts.ablation(rows, lines, whole), f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)
    return outcome.code
