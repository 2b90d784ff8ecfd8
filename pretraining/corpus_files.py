"""A corpus as two files of tokens, made once, in parallel, and kept on disk.

training.bin has the documents that are trained on, held_out.bin those that are held out. The side
of a document follows from its text alone, so copies of it are on the same side. prepared.json
records how much of both files is complete; an interrupted preparation continues from there.
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
NOTHING = {"documents": 0, "bytes": 0, "complete": False} | dict.fromkeys(SIDES, 0)
PREPARED = {name: type(value) for name, value in NOTHING.items()}
HELD_OUT = 50  # one document in 50 is held out
LEAST_HELD_OUT = 0.005  # share of the tokens; below it the end of the corpus is held out instead
PART_BYTES = 400_000_000  # text between two updates of prepared.json, about 100M tokens
CHUNK_CHARACTERS = 1_000_000  # tokenized by a thread at a time


def load(dataset, cap=0, prepares=True):
    """Return (training tokens, held-out tokens, name of the corpus), prepared on first use.

    Tokens are uint16 (N,). dataset: as for the scripts. cap: about how many tokens at most, 0 for
    all. prepares: prepare missing files in this process, rather than wait for another to do it.
    Raises UserError.
    """
    if dataset == "synthetic":
        return *_hold_out_end(token_cache.synthetic_tokens()), dataset

    contents, total, unit = token_cache.find(dataset)
    folder = token_cache.tokens_path(dataset, HELD_OUT, cap, *contents).with_suffix("")
    while not _is_complete(folder, prepares):
        if prepares:
            texts = token_cache.texts(dataset)
            prepare(folder, dataset, texts, cap, total if unit == "B" else None)
        else:
            time.sleep(1)

    training, held_out = (_tokens(folder / f"{side}.bin") for side in SIDES)
    if len(held_out) < LEAST_HELD_OUT * (len(training) + len(held_out)):
        training, held_out = _hold_out_end(training)  # there are too few documents
    return training, held_out, folder.name


def _tokens(path):
    """Return the tokens of a file, mapped; an empty file cannot be."""
    return token_cache.memory_map(path) if path.stat().st_size else np.empty(0, np.uint16)


def prepare(folder, dataset, texts, cap=0, total=None, part_bytes=PART_BYTES):
    """Tokenize the documents that are missing, with one thread a core. Raises UserError.

    texts: all documents, in the same order each time. total: their size in bytes, for the
    progress bar.
    """
    encoding = token_cache.gpt2_encoding()
    with naming(folder, "set CACHE_DIR to another folder"), contextlib.ExitStack() as stack:
        # Lock both files, and cut off what an interrupted preparation left incomplete.
        folder.mkdir(parents=True, exist_ok=True)
        opened = {}
        for side in SIDES:
            opened[side] = stack.enter_context(open(folder / f"{side}.bin", "ab"))
            fcntl.flock(opened[side], fcntl.LOCK_EX)  # other processes wait meanwhile
        prepared = _prepared(folder)
        sizes = {side: 2 * prepared[side] for side in SIDES}  # bytes, two a token
        if any(opened[side].seek(0, os.SEEK_END) < sizes[side] for side in SIDES):  # cut since
            prepared = dict(NOTHING)
        for side in SIDES:
            opened[side].truncate(2 * prepared[side])

        # Continue after the documents that are done, and record progress after each part.
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
                raise UserError(f"DATASET={dataset}: holds no text")
            is_last_part = prepared["bytes"] < part_end
            prepared["complete"] = is_last_part or 0 < cap <= tokens
            for file in opened.values():
                file.flush()
                os.fsync(file.fileno())
            files.write_json(folder / "prepared.json", prepared)
        bar.close()


def is_held_out(text):
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0


def _tokenized(encoding, texts):
    """Yield lists of (text, tokens as uint16) in order, tokenized a few lists ahead."""

    def tokenize(chunk):
        rows = [encoding.encode_to_numpy(text, disallowed_special=()) for text in chunk]
        rows = [np.append(row, token_cache.END_OF_TEXT).astype(np.uint16) for row in rows]
        return list(zip(chunk, rows, strict=True))

    threads = os.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        ahead = deque()
        for chunk in token_cache.chunks(texts, CHUNK_CHARACTERS):
            ahead.append(pool.submit(tokenize, chunk))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _hold_out_end(tokens):
    """Return (training tokens, held-out tokens): the end of a corpus is held out."""
    end = len(tokens) - len(tokens) // HELD_OUT
    return tokens[:end], tokens[end:]


def _prepared(folder):
    """Return the progress of a corpus: documents and bytes of text, and tokens of each side."""
    return files.read_cache(folder / "prepared.json", PREPARED) or dict(NOTHING)


def _is_complete(folder, prepares):
    """Return whether both files are complete and as they were written.

    prepares: forget them if they are not.
    """
    if not _prepared(folder)["complete"]:
        return False

    description = folder / "prepared.json"
    data = [folder / f"{side}.bin" for side in SIDES]
    is_whole = files.read_described(description, PREPARED, *data) is not None
    if prepares and not is_whole:
        description.unlink(missing_ok=True)
    return is_whole
