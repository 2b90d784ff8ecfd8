"""Write a results file as one HTML page, which needs no server and no network.

The figures are those of `make table` and `make ablate`; the charts are those of `make plots`, as
SVG. The templates in pages/ escape all values from files, and the page's security policy allows
only the one script whose hash it names.
"""

from Utils.base import files
from Utils.base.errors import UserError, naming
from Utils.draw import report_page
from Utils.results.selection import results_file_to_read


def main(args):
    if args.a or args.b:
        raise UserError("A and B: a report is of one results file", "make compare takes two")
    files.claim(args.report)
    path = results_file_to_read(args.results_file)
    html = report_page.report(path, args.device_name, args.price, args.base)
    with naming(args.report):
        args.report.write_text(html, encoding="utf-8")
    print(args.report)
