"""Keep the results file under a dated name, start an empty one and delete the charts.

Next: make all
"""

from Utils.base import files, paths
from Utils.base.command_line import Parser
from Utils.results import rows_file


def main(*words):
    path = Parser("reset", __doc__, "results_file").parse_args(words).results_file
    if path.exists():
        print(f"{path} is kept as {rows_file.reset(path)}")
    elif rows_file.initialize(path):
        print(f"{path}: header written")
    for file in (paths.OUTPUT / "plots").rglob("*"):
        if files.is_marked(file):
            file.unlink()
