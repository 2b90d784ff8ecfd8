"""Make a file of results to share, check one, or add one to results/."""

from pathlib import Path

from Utils.analysis import submission
from Utils.analysis.submission import FACTS
from Utils.base.command_line import SELECTION, Parser


def main(argv=None):
    parser = Parser("submit", __doc__, *SELECTION, "check")
    commands = ("make", "check", "add")
    parser.add_argument("command", choices=commands, nargs="?", default="make", help=" ")
    help = "path of the zip; for make, else named by device and date"
    parser.add_argument("file", type=Path, nargs="?", help=help)
    args = parser.parse_args(argv)
    if args.check:
        args.command = "check"
        args.file = Path(args.check)
    if args.command == "make":
        path, left_out = submission.make(args.file, args.results_file, args.device_name, args.base)
        print(path, *([left_out] if left_out else []), sep="\n")
        submission.check(path)  # raises where it is incomplete, and keeps it
    elif args.file is None:
        parser.error(f"{args.command} needs a file")
    elif args.command == "check":
        manifest = submission.check(args.file)
        print(f"{args.file}: whole; {', '.join(f'{name} {manifest[name]}' for name in FACTS)}")
    else:
        print(submission.add(args.file))
