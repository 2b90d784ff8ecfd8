"""Print the results: time, ratios, memory and loss of each script; ALL=1 prints all columns."""

from Utils.analysis import result_tables
from Utils.base.command_line import SELECTION, Parser
from Utils.results.selection import selected


def main(argv=None):
    args = Parser("table", __doc__, *SELECTION, "price", "all").parse_args(argv)
    shown = selected(args)
    options = {"price": args.price, "all_columns": args.all, "whole": shown.with_variants}
    print(result_tables.table(shown.rows, shown.left_out, shown.records, **options))
