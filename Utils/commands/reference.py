"""Make the reference results anew, in parts that resume.

    python -m Utils.commands.reference [PART ...] [--device D] [--results-file F]

Without names all of PARTS run, in order. An interrupted part goes on where it was; tainted runs are
repeated. The tree has to be clean, since rows name their commit.
"""

import sys
from argparse import Namespace
from functools import partial

from Utils.base import command_line, git
from Utils.base.errors import UserError, one_line
from Utils.launch import suite_runner

# On a CPU about 1,024 tokens a step for the ladder: at the usual 64, attention and activations are
# too small to matter. Four sequences for beyond/, where two scripts divide the batch. A GPU has the
# shape that its memory allows.
LARGER = {"batch_size": 4, "seq_len": 256, "steps": 13, "warmup": 3}
PARTS = {  # scripts, rounds, settings on a CPU
    "ladder": (["ladder"], range(4), LARGER),
    "ablation": (["ablation"], range(4, 8), LARGER),  # with the ladder's scripts: four rounds more
    "beyond": (["beyond"], range(4), {"batch_size": 4, "seq_len": 64, "steps": 20}),
}
TRIES = 3  # for runs that are tainted
MINUTES = 60  # until a run is killed


def main(argv=None):
    """Run the parts of the reference results. Return an exit code."""
    parser = command_line.Parser("reference", main.__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; else all")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    command_line.add_results_file(parser)
    args = parser.parse_args(argv)
    if unknown := {*args.parts} - {*PARTS}:
        raise UserError(f"no part {', '.join(unknown)}", f"choose {', '.join(PARTS)}")
    if git.commit().endswith("-dirty"):
        raise UserError("the tree has uncommitted changes", "commit them: rows name their commit")
    for part in args.parts or PARTS:
        if code := run(part, args):
            return code
    return 0


def run(part, args):
    """Run one part until none of its runs is tainted, TRIES times at most. Return an exit code."""
    words, rounds, on_cpu = PARTS[part]
    techniques, say = suite_runner.named(words), partial(print, file=sys.stderr, flush=True)
    settings = command_line.defaults() | (on_cpu if _on_cpu(args.device) else {})
    settings |= {"rounds": len(rounds), "round": rounds[0]}
    settings |= {"device": args.device, "results_file": args.results_file}
    settings = Namespace(**settings, timeout=MINUTES, precision=None, clean=True)
    for attempt in range(TRIES):
        say(f"\n{part}: {len(rounds)} rounds of {len(techniques)} scripts")
        outcome = suite_runner.run(techniques, settings, say)
        if outcome.code > 1:
            return outcome.code
        newest = suite_runner.newest_rows(outcome.run_ids, args.results_file)
        tainted = [run for run, row in newest.items() if row["grade"] == "tainted"]
        print(suite_runner.table(outcome, args.results_file))
        if not tainted:
            return 0
        say(f"{len(tainted)} runs are tainted" + (": again" if attempt + 1 < TRIES else ""))
    return 1


def _on_cpu(device):
    from Utils.device import (
        device_choice,  # here, as torch takes a second that a wrong name need not
    )

    return device_choice.choose(device).torch_device.type == "cpu"


if __name__ == "__main__":
    with one_line("reference"):
        sys.exit(main())
