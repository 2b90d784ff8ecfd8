"""Run an ablation, print its table and draw its chart."""

import sys
from functools import partial

from Utils.analysis import attribution
from Utils.base import command_line
from Utils.base.errors import UserError, one_line
from Utils.draw import ablation_chart, chart_style
from Utils.launch import suite_runner
from Utils.results import rows_file, selection
from Utils.scripts import bases, ladder


def main(argv=None):
    """Run every script and variant of an ablation, print its table and draw plots/ablation.

    Return the exit code of `suite.Outcome`.
    """
    parser = command_line.Parser("ablation", main.__doc__)
    command_line.add_settings(parser)
    command_line.add_extra(parser, "timeout", "precision", "base")
    command_line.add_plotsprefix(parser)
    parser.add_argument("whole", nargs="?", default="", help="a technique; else the last rung")
    args = parser.parse_args(argv)
    base = bases.asked(args.base)
    if base:
        whole, techniques = attribution.plan_of_base(base)
    else:
        whole = args.whole or attribution.last_rung()
        if ladder.get(whole).parent is None:
            raise UserError(f"{whole} has no technique that could be left out", "name another")
        techniques = suite_runner.named(attribution.plan(whole))
    outcome = suite_runner.run(techniques, args, partial(print, file=sys.stderr, flush=True))
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


if __name__ == "__main__":
    with one_line("ablation"):
        sys.exit(main())
