"""Compare two results technique by technique, and draw plots/compare. Ratios are B over A.

Next: look at the chart
"""

from Utils.analysis import comparison
from Utils.base.command_line import Parser
from Utils.draw import chart_style, ratio_charts


def main(*words):
    args = Parser("compare", __doc__, "a", "b", "base", "plotsprefix").parse_args(words)
    a, b = comparison.sides(args.a, args.b, args.base)
    print(comparison.table(a, b))
    name = a.summary.study.chart(f"{args.plotsprefix}compare")
    chart_style.save(ratio_charts.comparison_chart(a, b), name)
