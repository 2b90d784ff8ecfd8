"""Measure the most useful things first on a GPU with limited time, in pieces.

    make rented MINUTES=25 [PEERS=~/src] [DRY=1]

Pieces come in an order: the ladder, the fastest scripts at two shapes, other people's loops, single
techniques, a profile. One that does not fit into the time makes way for a shorter one. Rows and
files say what has ended, and the same command goes on with the next. The folder rented/ has all of
it: copy that back. DRY=1 prints the plan alone.

Exit codes: 0; 1 if a piece or a script failed; 2 for errors.
"""

import math
import time

from tools.rented import outcome
from tools.rented.plan import Plan
from Utils.analysis import text_tables
from Utils.base import command_line, files, paths
from Utils.base.errors import UserError, naming, run_command
from Utils.results import rows_file

FOLDER = paths.ROOT / "rented"
MINUTES = 25.0
LAST_MINUTES = 0.75  # for the charts and the page


def main(*words):
    args = command_line.Parser(
        "rented", __doc__, *command_line.RUN_SETTINGS, "peers", "dry"
    ).parse_args(words)
    command_line.check(args)
    if "results_file" not in args.explicit:
        args.results_file = FOLDER / "results.csv"
    minutes = MINUTES if args.minutes == "auto" else args.minutes
    deadline = time.monotonic() + 60 * (minutes - LAST_MINUTES)

    # What it writes, before it measures.
    folder = args.results_file.parent
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    rows_file.check(args.results_file)
    files.claim(folder / outcome.PAGE)

    plan = Plan(args)
    if args.dry:
        head = f"{plan.device.name}, torch {plan.device.torch}; MINUTES={minutes:g}"
        print(text_tables.page([head, outcome.pieces(plan)]))
        return 0

    def minutes_left():
        return (deadline - time.monotonic()) / 60

    # Pieces, while they fit.
    codes = []
    while piece := plan.next_piece(minutes_left()):
        began = minutes_left()
        print(f"{piece.title}: {piece.minutes:g} of {began:.1f} min", flush=True)
        code = plan.run(piece, began)
        took = began - minutes_left()
        print(f"  {took:.1f} min {plan.reasons[piece.title]}".rstrip(), flush=True)
        codes.append(code)
        if code == 2:  # the reason holds for all pieces
            break

    missing = plan.missing()
    if missing and not codes:
        shortest = min(piece.minutes for piece in missing) + LAST_MINUTES
        problem = f"MINUTES={minutes:g}: no piece fits"
        raise UserError(problem, f"the shortest needs MINUTES={math.ceil(shortest)}")

    # The page, and what to do next.
    page = outcome.write(plan)
    print(f"\n{page}: what was measured and what was not")
    if missing:
        print("next: run the same command to continue")
    print(f"next: copy {page.parent} back")
    return int(any(codes))


if __name__ == "__main__":
    run_command("rented", main)
