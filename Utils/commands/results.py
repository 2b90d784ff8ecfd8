"""Create a results file (init), or archive one and create a new one (reset)."""

from Utils.base import command_line, errors
from Utils.results import rows_file


def main(argv=None):
    parser = command_line.Parser("results", __doc__)
    parser.add_argument("command", choices=("init", "reset"), help=" ")
    command_line.add_results_file(parser)
    args = parser.parse_args(argv)
    if args.command == "reset" and args.results_file.exists():
        print(f"{args.results_file} is kept as {rows_file.reset(args.results_file)}")
    elif rows_file.initialize(args.results_file):
        print(f"{args.results_file}: header written")
    else:
        print(f"{args.results_file} is there already")


if __name__ == "__main__":
    with errors.one_line("results"):
        main()
