"""Create the results file with its header, where there is none."""

from Utils.base.command_line import Parser
from Utils.results import rows_file


def main(argv=None):
    path = Parser("init_results", __doc__, "results_file").parse_args(argv).results_file
    is_new = rows_file.initialize(path)
    print(f"{path}: header written" if is_new else f"{path} is there already")
