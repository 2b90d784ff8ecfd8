"""Create the results file with its header, unless it exists.

Next: make all
"""

from Utils.results import rows_file


def main(args):
    path = args.results_file
    is_new = rows_file.initialize(path)
    print(f"{path}: header written" if is_new else f"{path} is there already")
