"""Write the generated parts of README.md and docs/ from rows, docstrings and the Makefile."""

from Utils.base.command_line import Parser
from Utils.draw import doc_pages
from Utils.results import selection
from Utils.results.shown_rows import selected
from Utils.scripts.ladder import BASELINE


def main(argv=None):
    args = Parser("readme", __doc__, "results_file", "device_name").parse_args(argv)
    args.base = BASELINE
    shown = selected(args, selection.select_ladder)
    print(*doc_pages.write(shown.rows, shown.records), sep="\n")
    if shown.left_out:
        print(shown.left_out)
