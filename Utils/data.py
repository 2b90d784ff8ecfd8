"""Batches of GPT-2 tokens, drawn from a corpus that is tokenized once, or streamed.

Batches are cut from the tokens at places drawn from (seed, step) alone, so every technique sees the
same tokens in the same order.
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

from Utils.base.errors import UserError
from Utils.corpus import sources
from Utils.corpus.tokenize import END_OF_TEXT, gpt2_encoding, load_tokens, mapped

__all__ = ["END_OF_TEXT", "StreamedBatches", "TokenBatches", "gpt2_encoding"]


class Batches:
    """What TokenBatches and StreamedBatches share.

    facts: what identifies the corpus, a dict for the record.
    """

    @property
    def worker_options(self):
        """Options of a DataLoader for worker processes that end when this process does.

        A fork would copy locks that other threads hold, and a GPU's context, which does not work in
        a copy; a spawned worker would import torch again. A server of forks imports it once.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the server inherits, and
        try:  # its workers from it: Ctrl-C is for this process, and they end with it
            multiprocessing.forkserver.ensure_running()  # it gets ready while the model is made
        finally:
            signal.signal(signal.SIGINT, interrupt)
        return {
            "multiprocessing_context": context,
            "worker_init_fn": _follow_parent,
            "generator": torch.Generator(),  # not the one that weights are drawn from
        }


class TokenBatches(Batches):
    """The batches of a run: `batches[step]` is (idx, targets), each int64 (B, T) on the CPU, in
    pageable memory; targets are idx one token further on. Iterating never ends. Of several ranks
    all draw the same batch, and each keeps its share, (B / world_size, T).

    args: Settings, of which dataset, batch_size (B), seq_len (T), seed, rank and world_size are
        read. Raises UserError where the corpus cannot be had or is shorter than one sequence.
    """

    def __init__(self, args):
        self.tokens, self.facts = load_tokens(args.dataset)
        self.batch_size, self.seq_len, self.seed = args.batch_size, args.seq_len, args.seed
        own = args.batch_size // args.world_size
        self.share = slice(args.rank * own, (args.rank + 1) * own)  # of every batch
        if len(self.tokens) <= self.seq_len:
            raise UserError(
                f"--dataset {args.dataset} has {len(self.tokens)} tokens, too few for one sequence "
                f"of {self.seq_len}: choose a smaller --seq-len or more text"
            )

    def starts(self, step):
        """Return where in the corpus that step's sequences begin: int64 (B / world_size,)."""
        random = np.random.default_rng((self.seed, step))
        all_ranks = random.integers(len(self.tokens) - self.seq_len, size=self.batch_size)
        return all_ranks[self.share]

    def __getitem__(self, step):
        T = self.seq_len
        rows = np.stack([self.tokens[start : start + T + 1] for start in self.starts(step)])
        rows = torch.from_numpy(rows.astype(np.int64))  # (B, T + 1)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def __iter__(self):
        step = 0
        while True:
            yield self[step]
            step += 1

    def __getstate__(self):
        """For a worker: pickle would copy what is mapped, so it gets the file's name instead."""
        mapped = isinstance(self.tokens, np.memmap)
        return self.__dict__ | ({"tokens": Path(self.tokens.filename)} if mapped else {})

    def __setstate__(self, state):
        self.__dict__ = state
        if isinstance(self.tokens, Path):
            self.tokens = mapped(self.tokens)


class StreamedBatches(Batches, torch.utils.data.IterableDataset):
    """The batches of a run, shaped as TokenBatches' are, read and tokenized while it trains: no
    token is kept. Each worker of a DataLoader reads files of its own, documents come in an order
    that depends on the seed, and after the last comes the first again.

    tokenized: function of an iterable of texts that yields a list of tokens for each. It runs in
        the worker.
    args: Settings, of which the same is read as by TokenBatches. Raises UserError.
    """

    def __init__(self, args, tokenized):
        self.name, self.tokenized = args.dataset, tokenized
        self.batch_size, self.seq_len = args.batch_size, args.seq_len
        with sources.one_line(args.dataset):
            # Through a buffer, so little is read before the first batch; files are shuffled whole.
            opened = sources.open_streams(args.dataset)
            self.parts = [part.shuffle(args.seed, buffer_size=100) for part in opened]
        self.facts = {"dataset": args.dataset, "streamed": True}
        args.notes.append("other batches than the other scripts', so other losses")

    def __iter__(self):
        B, T, tokens = self.batch_size, self.seq_len, []
        for document in self.tokenized(self._texts()):
            tokens += document
            while len(tokens) > B * T:
                batch = torch.tensor(tokens[: B * T + 1])
                del tokens[: B * T]
                yield batch[:-1].view(B, T), batch[1:].view(B, T)

    def _texts(self):
        """Without end, unless there is none at all: with fewer files than workers some get none."""
        sources.import_datasets()
        for epoch in count():
            found = False
            for part in self.parts:
                part.set_epoch(epoch)
                for text in sources.readable(self.name, sources.texts(part)):
                    found = True
                    yield text
            if not found:
                return


def _follow_parent(worker):
    """End this worker when the process that reads from it is gone.

    torch watches the process that forked the worker, here the server, which itself lives as long as
    any worker does. A reader that is interrupted while it takes a batch hangs up on the thread that
    sends it; the reader says why. What fails in the dataset itself torch raises in the reader.
    """
    parent, told = multiprocessing.parent_process(), sys.excepthook
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    hung_up = (ConnectionError, EOFError)
    sys.excepthook = lambda kind, *rest: issubclass(kind, hung_up) or told(kind, *rest)
