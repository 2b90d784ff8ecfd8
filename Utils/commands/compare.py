"""Compare two results technique by technique, and draw plots/compare. Ratios are B over A.

Next: look at the chart
"""

from Utils.analysis import comparison, two_sides
from Utils.base.command_line import Parser
from Utils.draw import chart_style, ratio_charts


def main(*words):
    args = Parser("compare", __doc__, "a", "b", "base", "plotsprefix").parse_args(words)
    a, b = comparison.sides(args.a, args.b, args.base)
    sides = two_sides.unpaired(a, b)
    print(comparison.page(a, b, sides))

    columns = sides.columns(comparison.MEASURED)
    chart = ratio_charts.two_sides(sides, columns, comparison.caution(a, b))
    chart_style.save(chart, a.study.chart(f"{args.plotsprefix}compare"))
