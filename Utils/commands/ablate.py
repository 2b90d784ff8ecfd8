"""Run every script and variant of an ablation, print its table and draw plots/ablation."""

from Utils.analysis import attribution
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.base.setting_table import OF_A_RUN
from Utils.draw import ablation_chart, chart_style
from Utils.launch import suite_runner, suite_start
from Utils.results import rows_file, selection
from Utils.scripts import bases, ladder


def main(argv=None):
    """Return the exit code of `suite_runner.Outcome`."""
    names = (*OF_A_RUN, "timeout", "precision", "base", "plotsprefix", "t")
    args = Parser("ablate", __doc__, *names).parse_args(argv)
    base = bases.asked(args.base)
    if base:
        whole, techniques = attribution.plan_of_base(base)
    else:
        whole = args.t or attribution.last_rung()
        if ladder.get(whole).parent is None:
            raise UserError(f"{whole} has no technique that could be left out", "name another")
        techniques = suite_runner.named(attribution.plan(whole))
    if code := suite_start.announce(techniques, args, base):
        return code
    outcome = suite_runner.run(techniques, args, suite_runner.say)
    if outcome.code > 1:
        return outcome.code
    print(suite_runner.table(outcome, args.results_file))
    rows = rows_file.read(args.results_file)
    rows, left_out = selection.select(rows, with_variants=True, base=base and base.name)
    lines = attribution.credits(rows, whole)
    print("\n" + attribution.table(lines))
    chart_style.save(ablation_chart.draw(rows, lines, whole), f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)
    return outcome.code
