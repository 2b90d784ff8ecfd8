"""The plan for a device: its pieces, what the rows have of them, and the run of the next."""

import sys

import pandas as pd

from tools.peers import loops
from tools.rented import pieces, rented_device
from Utils.base import child, paths
from Utils.base.text import plain
from Utils.results import rows_file
from Utils.scripts.ladder import repository

COMPLETE = (0, 1)  # exit codes of a piece; after 1 a script has failed, which has its row


class Plan:
    """A plan of a command.

    args: the command's settings.

    pieces: the most useful first.
    tried: pieces that this command has begun, with the rounds that they had before.
    reasons: why pieces have failed in this command, by title, or "".
    """

    def __init__(self, args):
        self.args = args
        self.device = child.in_child(rented_device.find, args)
        ladder = loops.tracked_part(repository(self.device.precision))
        names = loops.names(args.peers)
        self.pieces = pieces.in_order(ladder, self.device, names, args.results_file.parent)
        self.tried = set()
        self.reasons = {}

    def missing(self):
        """Return the pieces that have not ended, each with the rounds that it has.

        Rows of this device, torch, commit, model and corpus count. Other people's loops have a
        commit, and perhaps a torch, of their own.
        """
        path = self.args.results_file
        runs = pd.DataFrame(columns=rows_file.COLUMNS)
        if rows_file.has_rows(path):
            runs = rows_file.read(path, with_pairs=True).drop_duplicates("run_id")
            commit = paths.commit().removesuffix("-dirty")
            is_ours = runs.commit.str.removesuffix("-dirty") == commit
            is_ours &= runs.torch == self.device.torch
            is_counted = is_ours | runs.technique.isin([loop.name for loop in loops.LOOPS])
            same = "device == @self.device.name and model == @self.args.model"
            runs = runs[is_counted].query(f"{same} and dataset == @self.args.dataset")

        rounds = {piece: piece.rounds_done(runs) for piece in self.pieces}
        return {piece: done for piece, done in rounds.items() if done < piece.rounds}

    def next_piece(self, minutes):
        """Return the first piece that is missing and fits into these minutes, or None.

        One that has run comes again if it has more rounds since.
        """
        for piece, done in self.missing().items():
            if (piece, done) not in self.tried and piece.minutes <= minutes:
                self.tried.add((piece, done))
                return piece
        return None

    def run(self, piece, minutes):
        """Run a piece for these minutes at most. Return its exit code, None if they were over."""
        values = {name: getattr(self.args, name) for name in [*self.args.explicit, "results_file"]}
        values |= {name: getattr(piece, name) for name in ("minutes", "batch_size", "seq_len")}
        module, *words = piece.command
        # A command leaves out assignments of settings that it does not have.
        words += [f"{name.upper()}={value}" for name, value in values.items()]

        done = child.run([sys.executable, "-m", module, *words], paths.environment(), 60 * minutes)
        reason = "out of time" if done.code is None else done.reason
        self.reasons[piece.title] = "" if done.code in COMPLETE else plain(reason)
        return done.code
