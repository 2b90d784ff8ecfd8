"""Write the generated parts of README.md and docs/ from rows, docstrings and the Makefile."""

from Utils.analysis import selection
from Utils.base import command_line, errors, results
from Utils.base.ladder import BASELINE
from Utils.share import pages


def main(argv=None):
    parser = command_line.Parser("readme", __doc__)
    command_line.add_selection(parser)
    args = parser.parse_args(argv)
    all_rows = results.read(args.results_file)
    all_rows = all_rows[all_rows.base == BASELINE]
    rows, left_out = selection.select_ladder(all_rows, args.device_name)
    records = results.records(args.results_file, all_rows.run_id.unique())
    print(*pages.write(rows, all_rows, records), *([left_out] if left_out else []), sep="\n")


if __name__ == "__main__":
    with errors.one_line("readme"):
        main()
