"""A corpus as two files of tokens, made once, in parallel, and kept on disk.

training.bin has the documents that are trained on, held_out.bin those that are held out. The text
of a document alone says which it is, so copies of one are on the same side. prepared.json says how
much of both files is whole: what was interrupted goes on behind that.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from Utils.base import files
from Utils.base.errors import UserError, naming
from Utils.corpus import token_cache

SIDES = ("training", "held_out")
HELD_OUT = 50  # one document in so many
LEAST_HELD_OUT = 0.005  # of the tokens; with less, the end of the corpus is held out
PART_BYTES = 400_000_000  # of text between two entries in prepared.json: about 100M tokens
CHUNK_CHARACTERS = 1_000_000  # that a thread tokenizes at a time


def remove_leftovers(folder):
    """Remove what a killed process was writing. Only the process that owns the folder may."""
    for path in folder.glob(".tmp*"):
        path.unlink(missing_ok=True)


def load(dataset, cap=0, prepares=True):
    """Return (tokens to train on, held-out tokens, name of the corpus), made on first use.

    Tokens are uint16 (N,). dataset: as for the scripts. cap: about how many tokens at most; 0 for
    all there are. prepares: whether this process makes what is missing; another one waits until it
    is there. Raises UserError.
    """
    if dataset == "synthetic":
        return *_hold_out_end(token_cache.synthetic_tokens()), dataset
    contents, total, unit = token_cache.find(dataset)
    folder = token_cache.cached(dataset, HELD_OUT, cap, *contents).with_suffix("")
    while not _prepared(folder)["complete"]:
        if prepares:
            texts = token_cache.documents(dataset)
            prepare(folder, dataset, texts, cap, total if unit == "B" else None)
        else:
            time.sleep(1)
    paths = [folder / f"{side}.bin" for side in SIDES]
    empty = np.empty(0, np.uint16)
    training, held_out = (
        token_cache.mapped(path) if path.stat().st_size else empty for path in paths
    )
    if len(held_out) < LEAST_HELD_OUT * (len(training) + len(held_out)):
        training, held_out = _hold_out_end(training)  # there are too few documents
    return training, held_out, folder.name


def prepare(folder, dataset, texts, cap=0, total=None, part_bytes=PART_BYTES):
    """Tokenize what is not there yet, in as many threads as there are cores. Raises UserError.

    texts: of all documents, in the same order each time. total: how many bytes they have, for the
    progress bar.
    """
    encoding = token_cache.gpt2_encoding()
    texts = token_cache.readable(dataset, texts)
    with naming(folder, "set CACHE_DIR to another folder"), contextlib.ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        opened = {}
        for side in SIDES:
            opened[side] = stack.enter_context(open(folder / f"{side}.bin", "ab"))
            fcntl.flock(opened[side], fcntl.LOCK_EX)  # others wait meanwhile
        remove_leftovers(folder)
        prepared = _prepared(folder)
        for side in SIDES:
            opened[side].truncate(2 * prepared[side])  # to what is whole
        state = f"; {prepared['documents']:,} documents are done"
        bar = token_cache.progress_bar(dataset, total, "B", state)
        bar.update(prepared["bytes"])
        chunks = _tokenized(encoding, itertools.islice(texts, prepared["documents"], None))
        while not prepared["complete"]:
            part_end = prepared["bytes"] + part_bytes
            while prepared["bytes"] < part_end and (chunk := next(chunks, None)):
                for text, tokens in chunk:
                    side = "held_out" if is_held_out(text) else "training"
                    opened[side].write(tokens)
                    prepared[side] += len(tokens)
                    prepared["bytes"] += len(text.encode())
                prepared["documents"] += len(chunk)
                bar.update(prepared["bytes"] - bar.n)
            tokens = sum(prepared[side] for side in SIDES)
            if not tokens:
                raise UserError(f"--dataset {dataset}: holds no text")
            ended = prepared["bytes"] < part_end
            prepared["complete"] = ended or 0 < cap <= tokens
            for file in opened.values():
                file.flush()
                os.fsync(file.fileno())
            files.write_json(folder / "prepared.json", prepared)
        bar.close()


def is_held_out(text):
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0


def _tokenized(encoding, texts):
    """Yield lists of (text, its tokens, uint16), in order; a few lists are worked on ahead."""

    def tokenize(chunk):
        rows = [encoding.encode_to_numpy(text, disallowed_special=()) for text in chunk]
        rows = [np.append(row, token_cache.END_OF_TEXT).astype(np.uint16) for row in rows]
        return list(zip(chunk, rows, strict=True))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead = deque()
        for chunk in token_cache.chunks(texts, CHUNK_CHARACTERS):
            ahead.append(pool.submit(tokenize, chunk))
            if len(ahead) > 2 * pool._max_workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _hold_out_end(tokens):
    end = len(tokens) - len(tokens) // HELD_OUT
    return tokens[:end], tokens[end:]


def _prepared(folder):
    """Return what is there of a corpus: documents and bytes of text, and tokens of each side."""
    nothing = {"documents": 0, "bytes": 0, "complete": False} | dict.fromkeys(SIDES, 0)
    return files.read_json(folder / "prepared.json") or nothing
