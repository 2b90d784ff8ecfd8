"""Batches of GPT-2 tokens, drawn from a corpus that is tokenized once, or streamed.

Positions in the corpus are drawn from (seed, step) alone, so every technique sees the same tokens
in the same order.
"""

import multiprocessing
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path

import numpy as np
import torch

from Utils.base.command_line import spelled
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.corpus.token_cache import END_OF_TEXT, gpt2_encoding, load_tokens, memory_map, split

__all__ = ["END_OF_TEXT", "StreamedBatches", "TokenBatches", "gpt2_encoding"]


class Batches:
    """Base of TokenBatches and StreamedBatches. Its attribute facts identifies the corpus."""

    @property
    def worker_options(self):
        """Options of a DataLoader whose workers end with this process.

        A fork would copy locks of other threads and a GPU's context, which does not work in a copy;
        a spawned worker would import torch again. A fork server imports it once.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])

        # The server and its workers ignore Ctrl-C, which this process handles alone.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            multiprocessing.forkserver.ensure_running()  # it starts while the model is built
        finally:
            signal.signal(signal.SIGINT, interrupt)

        return {
            "multiprocessing_context": context,
            "worker_init_fn": _follow_parent,
            "generator": torch.Generator(),  # the default one draws the weights
        }


class TokenBatches(Batches):
    """The batches of a run: `batches[step]` is (idx, targets), each int64 (B, T) on the CPU.

    Memory is pageable; targets are idx shifted by one token. Iteration is endless. Several ranks
    draw the same batch, and each keeps its share, (B / world_size, T).

    args: Settings; dataset, batch_size (B), seq_len (T), seed, rank and world_size are read.

    Raises UserError if the corpus is not available or is shorter than one sequence.
    """

    def __init__(self, args):
        tokens, self.facts = load_tokens(args.dataset)
        self.tokens, _ = split(tokens)  # without the held-out end
        self.batch_size = args.batch_size
        self.seq_len = args.seq_len
        self.seed = args.seed
        size = args.batch_size // args.world_size
        self.share = slice(args.rank * size, (args.rank + 1) * size)  # this rank's part of a batch

        if len(self.tokens) <= self.seq_len:
            corpus = f"{spelled('dataset', args.dataset)} has {len(self.tokens)} tokens to train on"
            problem = f"{corpus}, too few for one sequence of {self.seq_len}"
            raise UserError(problem, "choose a smaller SEQ_LEN or more text")

    def starts(self, step):
        """Return the first positions of a step's sequences: int64 (B / world_size,)."""
        random = np.random.default_rng((self.seed, step))
        all_ranks = random.integers(len(self.tokens) - self.seq_len, size=self.batch_size)
        return all_ranks[self.share]

    def __getitem__(self, step):
        T = self.seq_len
        windows = np.lib.stride_tricks.sliding_window_view(self.tokens, T + 1)
        rows = windows[self.starts(step)]
        rows = torch.from_numpy(rows.astype(np.int64))  # (B, T + 1)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def __iter__(self):
        return map(self.__getitem__, count())

    def __getstate__(self):
        """Return the state for a worker, with the file's name in place of mapped tokens."""
        if isinstance(self.tokens, np.memmap):
            return vars(self) | {"tokens": self.tokens.filename}
        return vars(self)

    def __setstate__(self, state):
        self.__dict__ = state
        if isinstance(self.tokens, Path):
            self.tokens, _ = split(memory_map(self.tokens))


class StreamedBatches(Batches, torch.utils.data.IterableDataset):
    """The batches of a run, read and tokenized during training; the same shapes as TokenBatches.

    Each worker of a DataLoader reads separate files. The order of documents depends on the seed;
    after the last they repeat.

    args: Settings, as for TokenBatches.
    tokenized: function of an iterable of texts that yields a list of tokens for each. Workers call
        it.

    Raises UserError if the corpus is not available.
    """

    def __init__(self, args, tokenized):
        self.name = args.dataset
        self.tokenized = tokenized
        self.batch_size = args.batch_size
        self.seq_len = args.seq_len
        with token_cache.reading_errors(args.dataset):
            # A small buffer, so that the first batch comes early. Files are in random order too.
            opened = token_cache.open_streams(args.dataset)
            self.parts = [part.shuffle(args.seed, buffer_size=100) for part in opened]
        self.facts = {"dataset": args.dataset, "streamed": True}
        args.outcome.notes.append("uses different batches; its loss is not comparable")

    def __iter__(self):
        B, T = self.batch_size, self.seq_len
        tokens = []
        for document in self.tokenized(self._texts()):
            tokens += document
            while len(tokens) > B * T:
                batch = torch.tensor(tokens[: B * T + 1])
                del tokens[: B * T]
                yield batch[:-1].view(B, T), batch[1:].view(B, T)

    def _texts(self):
        """Yield texts endlessly; none if there are fewer files than workers."""
        token_cache.import_datasets()
        for epoch in count():
            empty = True
            for part in self.parts:
                part.set_epoch(epoch)
                for text in token_cache.texts(self.name, part):
                    empty = False
                    yield text
            if empty:
                return


def _follow_parent(worker):
    """End this worker when the process that reads from it has ended.

    torch watches the process that forked the worker, here the server, which lives as long as any
    worker. An interrupted reader disconnects from the worker's sending thread and reports the
    reason itself. torch raises errors of the dataset in the reader.
    """
    parent = multiprocessing.parent_process()
    report = sys.excepthook

    def end_with_parent():
        parent.join()
        os._exit(1)

    def report_unless_disconnected(kind, *error):
        if not issubclass(kind, (ConnectionError, EOFError)):
            report(kind, *error)

    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.excepthook = report_unless_disconnected
