"""Batches of a run: which sequences come when, whatever the number of ranks.

The tokens are cut into windows of seq_len, at other places in each epoch. An epoch is all of them
once, in an order of its own. Which window comes when is computed from the seed and the step alone:
a resumed run, also on other ranks, sees the batches of the run without a break.
"""

import numpy as np
import torch

from pretraining import corpus_files
from Utils.base.errors import UserError


class TokenBatches:
    """Micro-batches of (idx, targets), each int64 (B, T), of this rank.

    Reads dataset, corpus_tokens, seq_len (T), batch_size (B), accumulation, validation_tokens,
    seed, rank, local_rank and world_size off `args`. Raises UserError where the corpus cannot be
    had or is too short.
    """

    def __init__(self, args):
        self.args = args
        self.training, self.validation, self.corpus = corpus_files.load(
            args.dataset, args.corpus_tokens, prepares=args.local_rank == 0
        )
        self.windows = self._windows(self.training)
        self.orders = {}
        self.held_out_windows = self._windows(self.validation)
        if min(self.windows, self.held_out_windows) < 1:
            tokens = f"{len(self.training):,} tokens, and {len(self.validation):,} held out"
            problem = f"{tokens}, are too few for sequences of {args.seq_len}"
            remedy = "choose a smaller --seq-len or more text"
            raise UserError(f"--dataset {args.dataset}: {problem}: {remedy}")
        most = max(1, args.validation_tokens // args.seq_len)
        self.scored = min(self.held_out_windows, most)  # sequences of a validation
        args.hardware.reset_peak_memory()  # what preparing the corpus took is not the model's

    def _windows(self, tokens):
        """Return the number of sequences in an epoch, with room for each of T places to begin."""
        return (len(tokens) - self.args.seq_len) // self.args.seq_len

    def epoch(self, step):
        """Return how often the corpus has been seen when that many steps have been trained."""
        return step * self._sequences / self.windows

    @property
    def _sequences(self):
        """In a step, of all ranks."""
        return self.args.batch_size * self.args.accumulation * self.args.world_size

    def starts(self, step):
        """Return where in the corpus the sequences of a step begin: a list, of all ranks."""
        starts = []
        for index in range(step * self._sequences, (step + 1) * self._sequences):
            epoch, window = divmod(index, self.windows)
            offset, order = self._order(epoch)
            starts.append(offset + int(order[window]) * self.args.seq_len)
        return starts

    def _order(self, epoch):
        """Return (place at which the first window begins, order of the windows) in an epoch."""
        if epoch not in self.orders:
            random = np.random.default_rng((self.args.seed, epoch))
            offset = int(random.integers(self.args.seq_len))
            self.orders = {epoch: (offset, random.permutation(self.windows))}  # the last one alone
        return self.orders[epoch]

    def of(self, step):
        """Yield the rank's micro-batches of a step."""
        B, ranks = self.args.batch_size, self.args.world_size
        starts = self.starts(step)
        for n in range(self.args.rank, self.args.accumulation * ranks, ranks):
            yield self._batch(self.training, starts[n * B : (n + 1) * B])

    def held_out(self):
        """Yield the rank's batches of the held-out tokens, from all over them, always the same.

        They are full, so with few sequences some may come twice.
        """
        B, T, ranks = self.args.batch_size, self.args.seq_len, self.args.world_size
        count = max(1, self.scored // (B * ranks))  # of batches, for each rank
        for n in range(self.args.rank, count * ranks, ranks):
            rows = (row % self.scored for row in range(n * B, (n + 1) * B))
            windows = (row * self.held_out_windows // self.scored for row in rows)
            yield self._batch(self.validation, [window * T for window in windows])

    def _batch(self, tokens, starts):
        T = self.args.seq_len
        rows = np.stack([tokens[start : start + T + 1] for start in starts])
        rows = torch.from_numpy(rows.astype(np.int64))  # (B, T + 1)
        batch = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        # From pinned memory a copy to the device need not be waited for.
        return [t.pin_memory() for t in batch] if self.args.device.type == "cuda" else batch
