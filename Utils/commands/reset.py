"""Keep the results file under a dated name, start an empty one and delete the charts.

Next: make all
"""

from pathlib import Path

from Utils.base import files
from Utils.base.command_line import Parser
from Utils.results import rows_file


def main(*words):
    path = Parser("reset", __doc__, "results_file").parse_args(words).results_file
    if path.exists():
        print(f"{path} is kept as {rows_file.reset(path)}")
    elif rows_file.initialize(path):
        print(f"{path}: header written")
    for kind in ("png", "svg"):
        for chart in Path("plots").rglob(f"*.{kind}"):
            if files.is_marked(chart):
                chart.unlink()
