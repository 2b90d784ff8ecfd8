"""One run of a distributed script on several GPUs, or cores, of this machine.

    python -m Utils.commands.ddp [NAME] [--gpus 4] [flags of the scripts]

What `torchrun --standalone --nproc-per-node=4 -m beyond.NAME` does, by the same parts of torch, but
it ends with one line that names the rank at fault. A rank that dies ends the run at once; one that
hangs when the others have waited for it for PATIENCE_S seconds (an environment variable, 45). The
rows of a run that ended so are not written, and none of its processes is left.
"""

import sys

from Utils.base import command_line, errors, ladder
from Utils.base.command_line import Parser
from Utils.launch import torchrun
from Utils.launch.torchrun import DEFAULT


def main(argv=None):
    """Run each round. Returns the exit code: 0, or 1 where a rank failed, or 2 where the settings
    are not possible."""
    parser = Parser("launch", __doc__)
    command_line.add_settings(parser)
    command_line.add_extra(parser, "bucket_mb")
    parser.add_argument("name", nargs="?", default="", help=f"a technique; else {DEFAULT}")
    parser.add_argument("--gpus", default="", help="how many processes; else as many as there are")
    args = parser.parse_args(argv)
    technique = ladder.get(args.name or DEFAULT)
    count = torchrun.one_count(args.gpus or "all", args.device)
    for r in range(args.round, args.round + args.rounds):
        command = torchrun.command(technique, args, r)
        if code := torchrun.launch(technique.name, command, count):
            return code
    return 0


if __name__ == "__main__":
    with errors.one_line("launch"):
        sys.exit(main())
