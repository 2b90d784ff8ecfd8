"""Print the results: time, ratios, memory and loss of each script; ALL=1 prints all columns."""

from Utils.analysis import result_tables
from Utils.results.selection import selected


def main(args):
    shown = selected(args)
    options = {"price": args.price, "all_columns": args.all, "whole": shown.with_variants}
    print(result_tables.table(shown.rows, shown.left_out, shown.records, **options))
