"""Print the tables of a results file as GitHub Markdown."""

from Utils.analysis import result_tables
from Utils.base.command_line import SELECTION, Parser
from Utils.results.shown_rows import selected


def main(argv=None):
    args = Parser("table", __doc__, *SELECTION, "price").parse_args(argv)
    shown = selected(args)
    print(result_tables.table(shown.rows, shown.left_out, shown.records, args.price))
