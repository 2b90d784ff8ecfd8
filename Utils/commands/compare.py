"""Compare two results technique by technique, and draw plots/compare."""

from Utils.analysis import compare
from Utils.base import errors
from Utils.base.command_line import Parser
from Utils.draw import compare_chart, style


def main(argv=None):
    parser = Parser("compare", __doc__)
    help = "results file, or FILE:WORDS with words of a device, version, model, shape or commit"
    parser.add_argument("a", metavar="A", help=help)
    parser.add_argument("b", metavar="B", help="the same; ratios are B over A")
    parser.add_argument("--plotsprefix", default="", help="prefix of the chart's file name")
    args = parser.parse_args(argv)
    a, b = compare.sides(args.a, args.b)
    print(compare.table(a, b))
    style.save(compare_chart.draw(a, b), f"{args.plotsprefix}compare")


if __name__ == "__main__":
    with errors.one_line("compare"):
        main()
