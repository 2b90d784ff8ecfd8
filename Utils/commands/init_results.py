"""Create the results file with its header, unless it exists.

Next: make all
"""

from Utils.base.command_line import Parser
from Utils.results import rows_file


def main(*words):
    path = Parser("init_results", __doc__, "results_file").parse_args(words).results_file
    is_new = rows_file.initialize(path)
    print(f"{path}: header written" if is_new else f"{path} is there already")
