"""Compare two results technique by technique, and draw plots/compare. Ratios are B over A.

Next: look at the chart
"""

from Utils.analysis import comparison
from Utils.draw import chart_style, ratio_charts


def main(args):
    a, b = comparison.sides(args.a, args.b, args.base)
    print(comparison.table(a, b))
    chart_style.save(ratio_charts.comparison_chart(a, b), f"{args.plotsprefix}compare")
