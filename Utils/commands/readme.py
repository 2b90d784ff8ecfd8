"""Write the generated parts of README.md and docs/ from rows, docstrings and the Makefile."""

from Utils.base import command_line, errors
from Utils.draw import doc_pages
from Utils.results import rows_file, selection
from Utils.scripts.ladder import BASELINE


def main(argv=None):
    parser = command_line.Parser("readme", __doc__)
    command_line.add_selection(parser)
    args = parser.parse_args(argv)
    all_rows = rows_file.read(args.results_file)
    all_rows = all_rows[all_rows.base == BASELINE]
    rows, left_out = selection.select_ladder(all_rows, args.device_name)
    records = rows_file.records(args.results_file, all_rows.run_id.unique())
    print(*doc_pages.write(rows, all_rows, records), *([left_out] if left_out else []), sep="\n")


if __name__ == "__main__":
    with errors.one_line("readme"):
        main()
