"""Run a distributed script on several GPUs, or cores, of this machine.

    python -m Utils.commands.ddp [NAME] [--gpus 4] [flags of the scripts]

As `torchrun --standalone --nproc-per-node=4 -m beyond.FOLDER.NAME`, but a failure ends with one
line that names the rank at fault. A rank that dies ends the run at once; one that hangs ends it
when the others have waited for PATIENCE_S seconds (an environment variable, 45). A failed run
writes no rows and leaves no process.
"""

import sys

from Utils.base import command_line, errors
from Utils.launch import rank_launcher
from Utils.launch.rank_launcher import DEFAULT
from Utils.scripts import ladder


def main(argv=None):
    """Run each round. Return the exit code: 0; 1 where a rank failed; 2 for impossible settings."""
    parser = command_line.Parser("launch", __doc__)
    command_line.add_settings(parser)
    command_line.add_extra(parser, "bucket_mb")
    parser.add_argument("name", nargs="?", default="", help=f"a technique; else {DEFAULT}")
    parser.add_argument("--gpus", default="", help="number of processes; else all GPUs or cores")
    args = parser.parse_args(argv)
    technique = ladder.get(args.name or DEFAULT)
    count = rank_launcher.one_count(args.gpus or "all", args.device)
    for r in range(args.round, args.round + args.rounds):
        command = rank_launcher.command(technique, args, r)
        if code := rank_launcher.launch(technique.name, command, count):
            return code
    return 0


if __name__ == "__main__":
    with errors.one_line("launch"):
        sys.exit(main())
