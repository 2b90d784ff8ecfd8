"""Write the generated parts of README.md and docs/ from rows, docstrings and the Makefile."""

from Utils.base import command_line, errors
from Utils.draw import doc_pages
from Utils.results import records_file, rows_file, selection
from Utils.scripts.ladder import BASELINE


def main(argv=None):
    parser = command_line.Parser("readme", __doc__)
    command_line.add_selection(parser)
    args = parser.parse_args(argv)
    rows = rows_file.read(args.results_file)
    rows, left_out = selection.select_ladder(rows[rows.base == BASELINE], args.device_name)
    records = records_file.read(args.results_file, rows.run_id.unique())
    print(*doc_pages.write(rows, records), *([left_out] if left_out else []), sep="\n")


if __name__ == "__main__":
    with errors.one_line("readme"):
        main()
