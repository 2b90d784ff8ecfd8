"""Write the generated parts of README.md, docs/ and results/, and docs/gpus.png, from rows,
docstrings, parsers and figures."""

from Utils.analysis import submission
from Utils.base.command_line import Parser
from Utils.draw import doc_pages, gpus_chart
from Utils.results import records_file, rows_file, selection, shared_folders


def main(argv=None):
    Parser("readme", __doc__).parse_args(argv)
    path = shared_folders.newest()
    rows, _ = selection.select_ladder(rows_file.read(path))
    records = records_file.read(path, rows.run_id.unique())
    gpus_chart.write()
    print(*doc_pages.write(rows, records), *submission.write_pages(), sep="\n")
