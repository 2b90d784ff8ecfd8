"""Print the tables of a results file as GitHub Markdown."""

from Utils.analysis import result_tables
from Utils.base import command_line, errors
from Utils.results import records_file, rows_file, selection


def main(argv=None):
    parser = command_line.Parser("table", __doc__)
    command_line.add_selection(parser)
    help = "price of one hour of this device; adds the cost of 10^9 tokens"
    parser.add_argument("--price", type=command_line.finite("a price", word=""), help=help)
    args = parser.parse_args(argv)
    rows = rows_file.read(args.results_file)
    rows, left_out = selection.select(rows, args.device_name, base=args.base)
    records = records_file.read(args.results_file, rows.run_id.unique())
    print(result_tables.table(rows, left_out, records, args.price))


if __name__ == "__main__":
    with errors.one_line("table"):
        main()
