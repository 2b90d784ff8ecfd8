"""Compare two results technique by technique, and draw plots/compare."""

from Utils.analysis import comparison
from Utils.base import errors
from Utils.base.command_line import Parser
from Utils.draw import chart_style, comparison_chart


def main(argv=None):
    parser = Parser("compare", __doc__)
    help = "results file, or FILE:WORDS with words of a device, version, model, shape or commit"
    parser.add_argument("a", metavar="A", help=help)
    parser.add_argument("b", metavar="B", help="the same; ratios are B over A")
    parser.add_argument("--plotsprefix", default="", help="prefix of the chart's file name")
    args = parser.parse_args(argv)
    a, b = comparison.sides(args.a, args.b)
    print(comparison.table(a, b))
    chart_style.save(comparison_chart.draw(a, b), f"{args.plotsprefix}compare")


if __name__ == "__main__":
    with errors.one_line("compare"):
        main()
