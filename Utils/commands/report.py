"""Write a results file as one HTML page, which needs no server and no network.

    python -m Utils.commands.report [--results-file FILE] [--report report.html]
    python -m Utils.commands.report --a results.csv:2.11 --b results.csv:2.13

The figures are those of `summary`, `compare` and `ablation`; the charts are those of `make plots`,
as SVG. The templates in pages/ escape all values from files, and the page's security policy allows
only the one script whose hash it names.
"""

from pathlib import Path

from Utils.base import command_line
from Utils.base.errors import naming, one_line
from Utils.draw import report_page


def main(argv=None):
    """Write all results, or two of them compared, to one page, and print its path."""
    parser = command_line.Parser("report", main.__doc__)
    command_line.add_selection(parser)
    help = "price of one hour of this device; adds the cost of 10^9 tokens"
    parser.add_argument("--price", type=command_line.finite("a price", word=""), help=help)
    help = "path of the page"
    parser.add_argument("--report", type=Path, default=Path("report.html"), help=help)
    help = "results file, or FILE:WORDS, to compare B with; see `make compare`"
    parser.add_argument("--a", default="", help=help)
    parser.add_argument("--b", default="", help="the same; ratios are B over A")
    args = parser.parse_args(argv)
    if args.a or args.b:
        html = report_page.comparison_page(args.a, args.b)
    else:
        html = report_page.report(args.results_file, args.device_name, args.price, args.base)
    with naming(args.report):
        args.report.write_text(html, encoding="utf-8")
    print(args.report)


if __name__ == "__main__":
    with one_line("report"):
        main()
