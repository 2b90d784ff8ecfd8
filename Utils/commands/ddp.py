"""Run a distributed script on several GPUs, or cores, of this machine.

As `.venv/bin/torchrun --standalone --nproc-per-node=4 -m beyond.FOLDER.NAME`, but a failure ends
with one line that names the rank at fault. A rank that dies ends the run at once; one that hangs
ends it when the others have waited for PATIENCE_S seconds (an environment variable, 45). A failed
run writes no rows and leaves no process.
"""

from Utils.base.command_line import ALL_SCRIPT_SETTINGS, Parser, check
from Utils.launch import rank_launcher
from Utils.scripts import ladder


def main(*words):
    """Run each round. Return the exit code: 0; 1 if a rank failed; 2 for impossible settings."""
    args = Parser("ddp", __doc__, *ALL_SCRIPT_SETTINGS, "t", "gpus").parse_args(words)
    check(args)
    technique = ladder.get(args.t or rank_launcher.DEFAULT)
    count = rank_launcher.count(args.gpus or "all", args.device)

    for r in range(args.round, args.round + args.rounds):
        command = rank_launcher.command(technique, args, r)
        if code := rank_launcher.launch(technique.name, command, count):
            return code
    return 0
