"""Write results to share to results/<device>/<date>/, or check such folders."""

from pathlib import Path

from tools.share import submission
from Utils.base.command_line import SELECTION, Parser
from Utils.base.errors import run_command
from Utils.results import rows_file, selection


def main(*words):
    args = Parser("submit", __doc__, *SELECTION, "check").parse_args(words)
    if args.check:
        for folder in submission.check(Path(args.check).absolute()):
            print(f"{folder}: complete")
        return

    rows = rows_file.read(args.results_file)
    folder, left_out = submission.make(
        args.results_file, rows, selection.SHARED, args.device_name, args.base
    )
    print(folder)
    if left_out:
        print(left_out)
    print("next: commit it and results/README.md, and open a pull request")


if __name__ == "__main__":
    run_command("submit", main)
