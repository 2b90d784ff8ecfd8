"""Measure what matters most on a GPU that one has for a while, in pieces, until the time is over.

    make rented MINUTES=25 [PEERS=~/src] [DRY=1]

Pieces come in an order: the ladder, the fastest scripts at two shapes, other people's loops, single
techniques, the ablation, a profile, the ladder at another batch. One that does not fit into the
time makes way for a shorter one. Each is written down when it ends, and the same command goes on
with the next. The folder rented/ has all of it: copy that back. DRY=1 prints the plan alone.

Exit codes: 0; 1 if a piece or a script failed; 2 for errors.
"""

import math
import time

from tools.peers import loops
from tools.rented import outcome
from tools.rented.plan import Plan
from Utils.analysis import text_tables
from Utils.base import command_line, files, paths
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.base.errors import UserError, naming, run_command
from Utils.results import rows_file

FOLDER = paths.ROOT / "rented"
MINUTES = 25.0
LAST_S = 45.0  # for the charts and the page


def main(*words):
    start = time.monotonic()
    args = Parser("rented", __doc__, *RUN_SETTINGS, "peers", "dry").parse_args(words)
    command_line.check(args)
    if "results_file" not in args.explicit:
        args.results_file = FOLDER / "results.csv"
    minutes = MINUTES if args.minutes == "auto" else args.minutes

    # What it writes, before it measures.
    folder = args.results_file.parent
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    rows_file.check(args.results_file)
    files.claim(folder / outcome.PAGE)
    problem = f"{folder}: another make rented measures there; wait for its end"
    with files.locked(folder / "plan.lock", problem):
        plan = Plan(args, loops.names(args.peers))
        if args.dry:
            device = plan.conditions["device"]
            head = f"{device}, torch {plan.conditions['torch']}; MINUTES={minutes:g}"
            print(text_tables.page([head, outcome.to_run(plan)]))
            return 0
        return measure(plan, minutes, start)


def measure(plan, minutes, start):
    """Run pieces while they fit, and write the page. Return the exit code.

    start: time.monotonic() at which the minutes began.
    """

    def seconds_left():
        return 60 * minutes - LAST_S - (time.monotonic() - start)

    tried = []
    while piece := plan.next_piece(seconds_left(), tried):
        planned = plan.seconds(piece) / 60
        print(f"{piece.name}: about {planned:.1f} of {seconds_left() / 60:.1f} min", flush=True)
        plan.run(piece, seconds_left())
        tried.append(piece.name)
        ended = plan.ended[piece.name]
        print(f"  {ended['seconds'] / 60:.1f} min {ended['reason']}".rstrip(), flush=True)
        if ended["code"] == 2:  # the reason holds for all pieces
            break

    to_come = [piece for piece in plan.missing() if not plan.refusal(piece)]
    if to_come and not tried:
        shortest = min(map(plan.seconds, to_come)) + LAST_S
        problem = f"MINUTES={minutes:g}: no piece fits"
        raise UserError(problem, f"the shortest needs MINUTES={math.ceil(shortest / 60) + 1}")

    page = outcome.write(plan)
    print(f"\n{page}: what was measured and what was not")
    if to_come:
        print("next: the same command goes on")
    print(f"next: copy {page.parent} back")
    return int(any(plan.ended[name]["code"] for name in tried))


if __name__ == "__main__":
    run_command("rented", main)
