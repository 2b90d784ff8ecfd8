"""Batches of a training run: the same sequences in each step, for any number of ranks.

The tokens are cut into windows of seq_len. An epoch is all windows once; each epoch has another
offset and another order. Both follow from the seed and the step alone, so a resumed run, also one
with another number of ranks, sees the batches of an uninterrupted run.
"""

import numpy as np
import torch

from pretraining import corpus_files
from Utils.base.errors import UserError


class TokenBatches:
    """Micro-batches of (idx, targets) for this rank, each int64 (B, T).

    Reads dataset, corpus_tokens, seq_len (T), batch_size (B), accumulation, validation_tokens,
    seed, rank, local_rank and world_size from `args`. Raises UserError if the corpus is missing or
    too short.
    """

    def __init__(self, args):
        self.args = args
        self.training, self.validation, self.corpus = corpus_files.load(
            args.dataset, args.corpus_tokens, prepares=args.local_rank == 0
        )
        self.windows = self._windows(self.training)
        self.orders = {}  # offset and order by epoch; only the last is kept
        self.held_out_windows = self._windows(self.validation)
        if min(self.windows, self.held_out_windows) < 1:
            tokens = f"{len(self.training):,} tokens, and {len(self.validation):,} held out"
            problem = f"{tokens}, are too few for sequences of {args.seq_len}"
            remedy = "choose a smaller SEQ_LEN or more text"
            raise UserError(f"DATASET={args.dataset}: {problem}: {remedy}")

        most = max(1, args.validation_tokens // args.seq_len)
        self.scored = min(self.held_out_windows, most)  # sequences in a validation
        args.hardware.reset_peak_memory()  # leaves out memory that preparing the corpus took

    def _windows(self, tokens):
        """Return the number of sequences in an epoch, whichever of T offsets it begins at."""
        return (len(tokens) - self.args.seq_len) // self.args.seq_len

    def epoch(self, step):
        """Return how many times the corpus has been seen after `step` steps."""
        return step * self._sequences_per_step / self.windows

    @property
    def _sequences_per_step(self):
        """Sequences in a step, over all ranks."""
        return self.args.batch_size * self.args.accumulation * self.args.world_size

    def starts(self, step):
        """Return the positions in the corpus at which a step's sequences begin, for all ranks."""
        starts = []
        first = step * self._sequences_per_step
        for index in range(first, first + self._sequences_per_step):
            epoch, window = divmod(index, self.windows)
            offset, order = self._order(epoch)
            starts.append(offset + int(order[window]) * self.args.seq_len)
        return starts

    def _order(self, epoch):
        """Return (position of the first window, order of the windows) in an epoch."""
        if epoch not in self.orders:
            random = np.random.default_rng((self.args.seed, epoch))
            offset = int(random.integers(self.args.seq_len))
            self.orders = {epoch: (offset, random.permutation(self.windows))}
        return self.orders[epoch]

    def of(self, step):
        """Yield this rank's micro-batches of a step."""
        B = self.args.batch_size
        ranks = self.args.world_size
        starts = self.starts(step)
        for n in range(self.args.rank, self.args.accumulation * ranks, ranks):
            yield self._batch(self.training, starts[n * B : (n + 1) * B])

    def held_out(self):
        """Yield this rank's batches of held-out tokens, spread over all of them, always the same.

        Batches are full, so with few sequences some of these may come twice.
        """
        B = self.args.batch_size
        T = self.args.seq_len
        ranks = self.args.world_size
        count = max(1, self.scored // (B * ranks))  # batches per rank
        for n in range(self.args.rank, count * ranks, ranks):
            rows = (row % self.scored for row in range(n * B, (n + 1) * B))
            windows = (row * self.held_out_windows // self.scored for row in rows)
            yield self._batch(self.validation, [window * T for window in windows])

    def _batch(self, tokens, starts):
        T = self.args.seq_len
        rows = np.stack([tokens[start : start + T + 1] for start in starts])
        rows = torch.from_numpy(rows.astype(np.int64))  # (B, T + 1)
        batch = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        # The host does not wait for a copy from pinned memory to the device.
        return [t.pin_memory() for t in batch] if self.args.device.type == "cuda" else batch
