"""A corpus as shards of tokens, made once, in parallel, and kept on disk.

A shard is a run of consecutive documents, and two files: the tokens of those that are trained on,
and of those that are held out. The text of a document alone says which it is, so copies of one are
on the same side. progress.json grows by an entry when both files of a shard are there: what was
interrupted goes on behind the last of them.
"""

import hashlib
import itertools
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from Utils.base import files, paths
from Utils.base.errors import UserError
from Utils.corpus import text_sources, token_cache
from Utils.corpus.token_cache import END_OF_TEXT, gpt2_encoding, text_bytes

SIDES = ("training", "held_out")
HELD_OUT = 50  # one document in so many
LEAST_HELD_OUT = 0.005  # of the tokens; with less, the end of the corpus is held out
SHARD_BYTES = 400_000_000  # of text: about 100M tokens, 200 MB
CHUNK_CHARACTERS = 1_000_000  # that one thread tokenizes at a time


class Tokens:
    """Several arrays of tokens, read as if they were one."""

    def __init__(self, arrays):
        self.arrays = [array for array in arrays if len(array)]
        self.starts = np.cumsum([0, *(len(array) for array in self.arrays)])

    def __len__(self):
        return int(self.starts[-1])

    def read(self, start, count):
        """Return `count` tokens from `start` on: uint16 (count,)."""
        parts, end = [], start + count
        n = int(np.searchsorted(self.starts, start, side="right")) - 1
        while start < end:
            first = int(self.starts[n])
            parts.append(self.arrays[n][start - first : end - first])
            start += len(parts[-1])
            n += 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split(self, place):
        """Return the tokens before a place, and those from there on: two Tokens."""
        pairs = [*zip(self.arrays, np.maximum(place - self.starts[:-1], 0), strict=True)]
        before = Tokens(array[:cut] for array, cut in pairs)
        return before, Tokens(array[cut:] for array, cut in pairs)


def load(dataset, cap=0, prepares=True):
    """Return (tokens to train on, held-out tokens, name of the corpus), made on first use.

    dataset: as for the scripts. cap: about how many tokens at most; 0 for all there are.
    prepares: whether this process makes what is missing; another one waits until it is there.
    Raises UserError.
    """
    if dataset == "synthetic":
        return *_hold_out_end(Tokens([token_cache.synthetic_tokens()])), dataset
    contents, documents, total, unit = text_sources.find(dataset)
    name = token_cache.cached_name(dataset, HELD_OUT, cap, *contents)
    folder = paths.CACHE / "tokens" / name
    while not (progress := _progress(folder))["complete"]:
        if prepares:
            prepare(folder, dataset, documents(), cap, total if unit == "B" else None)
        else:
            time.sleep(1)

    def tokens(side):
        full = (n for n, shard in enumerate(progress["shards"]) if shard[side])
        return Tokens(np.memmap(_file(folder, n, side), np.uint16, "r") for n in full)

    training, held_out = map(tokens, SIDES)
    if len(held_out) < LEAST_HELD_OUT * (len(training) + len(held_out)):
        training, held_out = _hold_out_end(training)  # there are too few documents
    return training, held_out, name


def prepare(folder, dataset, texts, cap=0, total=None, shard_bytes=SHARD_BYTES):
    """Tokenize what is not there yet, in as many threads as there are cores. Raises UserError.

    texts: of all documents, in the same order each time. total: how many bytes they have, for the
    progress bar.
    """
    encoding = gpt2_encoding()
    progress = _progress(folder)
    files.remove_leftovers(folder)
    state = f"; {progress['documents']:,} documents are done"
    bar = token_cache.progress_bar(dataset, total, "B", state)
    texts = itertools.islice(text_sources.readable(dataset, texts), progress["documents"], None)
    with bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        bar.update(progress["bytes"])
        chunks = _in_order(
            pool,
            lambda chunk: _encode(encoding, chunk),
            token_cache.chunks(texts, CHUNK_CHARACTERS),
        )
        while not progress["complete"]:
            _write_shard(folder, progress, chunks, bar, shard_bytes)
            tokens = sum(shard[side] for shard in progress["shards"] for side in SIDES)
            if not tokens:
                raise UserError(f"--dataset {dataset}: holds no text")
            progress["complete"] |= bool(cap) and tokens >= cap
            files.write_json(folder / "progress.json", progress)


def _write_shard(folder, progress, chunks, bar, shard_bytes):
    """Write the next shard's two files, and what is in them to `progress`."""
    n = len(progress["shards"])
    shard, end = dict.fromkeys(SIDES, 0), progress["bytes"] + shard_bytes
    with (
        files.written_whole(_file(folder, n, "training")) as training,
        files.written_whole(_file(folder, n, "held_out")) as held_out,
    ):
        while progress["bytes"] < end:
            if (chunk := next(chunks, None)) is None:
                progress["complete"] = True
                break
            for side, file in zip(SIDES, (training, held_out), strict=True):
                file.write(chunk[side].tobytes())
                shard[side] += len(chunk[side])
            progress["documents"] += chunk["documents"]
            progress["bytes"] += chunk["bytes"]
            bar.update(chunk["bytes"])
    progress["shards"].append(shard)


def _encode(encoding, texts):
    """Return the tokens of some documents, by side, and how much text they were."""
    tokens = {side: [np.empty(0, np.uint16)] for side in SIDES}
    for text in texts:
        side = tokens["held_out" if is_held_out(text) else "training"]
        side += [encoding.encode_to_numpy(text, disallowed_special=()), [END_OF_TEXT]]
    joined = {side: np.concatenate(parts).astype(np.uint16) for side, parts in tokens.items()}
    return joined | {"documents": len(texts), "bytes": text_bytes(texts)}


def is_held_out(text):
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0


def _hold_out_end(tokens):
    return tokens.split(len(tokens) - len(tokens) // HELD_OUT)


def _in_order(pool, function, items):
    """Yield the function of each item, in order; a few are worked on ahead."""
    ahead = deque()
    for item in items:
        ahead.append(pool.submit(function, item))
        if len(ahead) > 2 * pool._max_workers:
            yield ahead.popleft().result()
    yield from (future.result() for future in ahead)


def _file(folder, n, side):
    return folder / f"{side}_{n:06}.bin"


def _progress(folder):
    """Return the progress of a corpus: documents and bytes of text read, shards with the tokens of
    each side, and whether it is complete."""
    nothing = {"documents": 0, "bytes": 0, "shards": [], "complete": False}
    return files.read_json(folder / "progress.json") or nothing
