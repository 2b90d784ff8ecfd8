"""Print the table of a results file, or write it into a page."""

from pathlib import Path

from Utils.analysis import selection, tables
from Utils.base import command_line, errors, results
from Utils.base.command_line import Parser
from Utils.base.errors import UserError

MARK = "<!-- table -->"


def main(argv=None):
    """Prints the table of a results file, or writes it into a page between two marks."""
    parser = Parser("table", main.__doc__)
    command_line.add_selection(parser)
    help = "of an hour of this device; adds what a billion tokens cost"
    parser.add_argument("--price", type=command_line.hourly_price, help=help)
    parser.add_argument("--into", type=Path, help="page with the marks <!-- table --> around it")
    args = parser.parse_args(argv)
    rows, left_out = selection.select(results.read(args.results_file), args.device_name)
    records = results.records(args.results_file, rows.run_id.unique())
    text = tables.table(rows, left_out, records, args.price, folded=args.into is not None)
    if args.into is None:
        print(text)
        return
    try:
        parts = args.into.read_text().split(MARK)
        if len(parts) != 3:
            raise UserError(f"{args.into}: has no two marks {MARK}")
        args.into.write_text(f"{parts[0]}{MARK}\n{text}\n{MARK}{parts[2]}")
    except OSError as error:
        raise UserError(f"{args.into}: {error.strerror}") from None


if __name__ == "__main__":
    with errors.one_line("table"):
        main()
