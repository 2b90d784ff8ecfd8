"""Run an ablation, print its table and draw its chart."""

import sys
from functools import partial

from Utils.analysis import ablation, selection
from Utils.base import bases, command_line, ladder, results
from Utils.base.errors import UserError, one_line
from Utils.draw import ablation_chart, style
from Utils.launch import suite


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
        whole, techniques = ablation.plan_of_base(base)
    else:
        whole = args.whole or ablation.last_rung()
        if ladder.get(whole).parent is None:
            raise UserError(f"{whole} has no technique that could be left out", "name another")
        techniques = suite.named(ablation.plan(whole))
    outcome = suite.run(techniques, args, partial(print, file=sys.stderr, flush=True))
    if outcome.code > 1:
        return outcome.code
    print(suite.table(outcome, args.results_file))
    rows = results.read(args.results_file)
    rows, left_out = selection.select(rows, with_variants=True, base=base and base.name)
    lines = ablation.credits(rows, whole)
    print("\n" + ablation.table(lines))
    style.save(ablation_chart.draw(rows, lines, whole), f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)
    return outcome.code


if __name__ == "__main__":
    with one_line("ablation"):
        sys.exit(main())
