"""A corpus -> GPT-2 tokens -> batches.

The corpus is tokenized once, with tiktoken's own gpt2 encoding, into a file of uint16 that is
kept in .cache/tokens under a name made from all that went in. Batches are cut from it at places
drawn from (seed, step) alone, so every technique sees the same tokens in the same order.
"""

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import torch

from Utils.base.errors import UserError
from Utils.corpus import sources, tokenize


class TokenBatches:
    """The batches of a run: `batches[step]` is (idx, targets), each int64 (B, T) on the CPU, in
    pageable memory; targets are idx one token further on. Iterating never ends. Of several ranks
    all draw the same batch, and each keeps its share, (B / world_size, T).

    Reads dataset, batch_size (B), seq_len (T), seed, rank and world_size off `args`, and has its
    hardware count memory from here on. Raises UserError where the corpus cannot be had or is
    shorter than one sequence.
    """

    def __init__(self, args):
        self.tokens, self.facts = tokenize.load_tokens(args.dataset)
        self.batch_size, self.seq_len, self.seed = args.batch_size, args.seq_len, args.seed
        own = args.batch_size // args.world_size
        self.share = slice(args.rank * own, (args.rank + 1) * own)  # of every batch
        if len(self.tokens) <= self.seq_len:
            raise UserError(
                f"--dataset {args.dataset} has {len(self.tokens)} tokens, too few for one sequence "
                f"of {self.seq_len}: choose a smaller --seq-len or more text"
            )
        args.hardware.forget_peak_memory()  # what preparing the corpus took is not the model's

    def starts(self, step):
        """Where in the corpus that step's sequences begin: int64 (B / world_size,)."""
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
            self.tokens = tokenize.mapped(self.tokens)


class StreamedBatches(torch.utils.data.IterableDataset):
    """The batches of a run, shaped as TokenBatches' are, read and tokenized while it trains: no
    token is kept. Each worker of a DataLoader reads files of its own, documents come in an order
    that depends on the seed, and after the last comes the first again.

    tokenized: function of an iterable of texts that yields a list of tokens for each. It runs in
        the worker.
    Reads of `args` what TokenBatches does. Raises Unsupported where there is no text to stream.
    """

    def __init__(self, args, tokenized):
        args.require_text()
        args.require("datasets")
        self.dataset, self.tokenized = args.dataset, tokenized
        self.batch_size, self.seq_len = args.batch_size, args.seq_len
        with sources.one_line(args.dataset):
            # Through a buffer, so little is read before the first batch; files are shuffled whole.
            self.parts = [
                part.shuffle(args.seed, buffer_size=100)
                for part in sources.open_streams(args.dataset)
            ]
        self.facts = {"dataset": args.dataset, "streamed": True}
        args.notes.append("other batches than the other scripts', so other losses")
        args.hardware.forget_peak_memory()

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
                for text in sources.readable(self.dataset, sources.texts(part)):
                    found = True
                    yield text
            if not found:
                return


class DataLoader(torch.utils.data.DataLoader):
    """torch's, over a dataset of whole batches, with workers that start afresh and end when this
    process does, however it ends. They start when the first batch is asked for.

    dataset: TokenBatches or StreamedBatches. options: torch's.
    """

    def __init__(self, dataset, **options):
        self.facts = dataset.facts
        # A fork would copy locks that other threads hold, and a GPU's context that does not work in
        # a copy; a spawned worker would import torch by itself. A server of forks does so once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch"])
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the server inherits, and
        try:  # its workers from it: Ctrl-C is for this process, and they end with it
            multiprocessing.forkserver.ensure_running()  # it gets ready while the model is made
        finally:
            signal.signal(signal.SIGINT, interrupt)
        super().__init__(
            dataset,
            batch_size=None,  # what the dataset gives is a batch already
            multiprocessing_context=context,
            worker_init_fn=_follow_parent,
            generator=torch.Generator(),  # else it draws from the one that weights are drawn from
            **options,
        )

    def __iter__(self):
        with _uninterrupted():
            workers = super().__iter__()
        yield from workers
        raise UserError(f"--dataset {self.facts['dataset']}: holds no more text")


@contextmanager
def _uninterrupted():
    """Puts Ctrl-C off until the end: a worker half started could only end in a traceback."""
    pressed = []
    interrupt = signal.signal(signal.SIGINT, lambda *caught: pressed.append(caught))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if pressed:
        raise KeyboardInterrupt


def _follow_parent(worker):
    """Ends this worker when the process that reads from it is gone. torch watches the process that
    forked it, here the server, which itself lives as long as any worker does.

    A reader interrupted while it takes a batch over hangs up on the thread that hands it out, and
    why is for the reader to say. What fails in the dataset itself torch raises there, not here."""
    parent, told = multiprocessing.parent_process(), sys.excepthook
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    hung_up = (ConnectionError, EOFError)
    sys.excepthook = lambda kind, *rest: issubclass(kind, hung_up) or told(kind, *rest)
