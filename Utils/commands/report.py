"""Write a results file as one HTML page, which needs no server and no network.

The figures are those of `make table` and `make ablate`; the charts are those of `make plots`, as
SVG. The templates in pages/ escape all values from files, and the page's security policy allows
only the one script whose hash it names.

Next: open it in a browser
"""

from Utils.base import files
from Utils.base.command_line import SELECTION, Parser
from Utils.base.errors import naming
from Utils.draw import report_page
from Utils.results import study


def main(*words):
    args = Parser("report", __doc__, *SELECTION, "price", "report").parse_args(words)
    files.claim(args.report)
    chosen = study.study_of_command(args, stands_in=True)
    with naming(args.report):
        args.report.parent.stat()  # a missing folder is a typing error
    files.write(args.report, report_page.html(chosen, args.price))
    print(args.report)
