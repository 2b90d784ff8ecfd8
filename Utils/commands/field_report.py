"""Print device, driver, versions and the table as Markdown, to paste into an issue."""

from Utils.base import command_line, errors
from Utils.draw.field_report_text import field_report
from Utils.results import rows_file, selection


def main(argv=None):
    parser = command_line.Parser("field-report", __doc__)
    command_line.add_selection(parser)
    args = parser.parse_args(argv)
    rows = rows_file.read(args.results_file)
    rows, left_out = selection.select(rows, args.device_name, base=args.base)
    records = rows_file.records(args.results_file, rows.run_id.unique())
    print(field_report(rows, records), *([f"\n{left_out}"] if left_out else []), sep="\n")


if __name__ == "__main__":
    with errors.one_line("field-report"):
        main()
