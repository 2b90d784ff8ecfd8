"""Run an ablation, print its table and draw its chart."""

import sys
from functools import partial

from Utils.analysis import ablation, selection
from Utils.base import bases, command_line, errors, ladder, results
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.draw import ablation_chart, style
from Utils.launch import suite


def main(argv=None):
    """Run every script and variant of an ablation, print its table and draw plots/ablation.

    Return the exit code of `suite.Outcome`.
    """
    parser = Parser("ablation", main.__doc__)
    command_line.add_settings(parser)
    command_line.add_timeout(parser)
    command_line.add_precision(parser)
    command_line.add_plotsprefix(parser)
    parser.add_argument("whole", nargs="?", default="", help="a technique; else the last rung")
    command_line.add_base(parser)
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
    rows, left_out = selection.select(
        results.read(args.results_file), with_variants=True, base=base and base.name
    )
    lines = ablation.credits(rows, whole)
    print("\n" + ablation.table(lines))
    style.save(ablation_chart.draw(rows, lines, whole), f"{args.plotsprefix}ablation")
    if left_out:
        print(left_out)
    return outcome.code


if __name__ == "__main__":
    with errors.one_line("ablation"):
        sys.exit(main())
