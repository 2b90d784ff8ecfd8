"""Compare two results technique by technique, and draw plots/compare. Ratios are B over A."""

from Utils.analysis import comparison
from Utils.base.command_line import Parser
from Utils.draw import chart_style, ratio_charts


def main(argv=None):
    args = Parser("compare", __doc__, "a", "b", "plotsprefix").parse_args(argv)
    a, b = comparison.sides(args.a, args.b)
    print(comparison.table(a, b))
    chart_style.save(ratio_charts.of_sides(a, b), f"{args.plotsprefix}compare")
