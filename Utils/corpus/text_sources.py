"""Texts of a corpus: the standard library, files, or a dataset of the Hugging Face Hub."""

import glob
import os
import sysconfig
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from Utils.base import paths
from Utils.base.command_line import spelled
from Utils.base.errors import UserError, first_line

HUB_TOKENS = 20_000_000  # read of a Hub dataset: enough for 24 default GPU runs of 50 steps
BUILDERS = {".txt": "text", ".md": "text", ".py": "text", ".jsonl": "json", ".parquet": "parquet"}
DATASETS = (
    "stdlib, synthetic, a file or folder of .txt .md .py .jsonl .parquet, "
    "or a Hugging Face Hub id such as HuggingFaceFW/fineweb-edu (OWNER/NAME or OWNER/NAME:CONFIG)"
)


def find(dataset):
    """Return the parts of the cache key, a function that yields the documents, and the amount to
    read with its unit."""
    files = _files(dataset)
    if files is None:
        contents = ["hub", dataset, HUB_TOKENS]
        return contents, partial(_read, _open_hub, dataset), HUB_TOKENS, "tokens"
    contents = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    documents = (_read_utf8, files) if dataset == "stdlib" else (_read, _open_files, files)
    return contents, partial(*documents), sum(size for _, size, _ in contents), "B"


def _files(dataset):
    """Return the files of a corpus, or None where it is on the Hub."""
    path = Path(dataset).expanduser()
    flag = spelled("dataset", dataset)
    if dataset == "stdlib":
        files = sorted(_standard_library())
    elif dataset and path.exists():
        candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [p for p in candidates if p.is_file() and p.suffix in BUILDERS]
    elif dataset.count("/") == 1 and dataset[0] not in "./~" and path.suffix not in BUILDERS:
        return None
    else:
        raise UserError(f"{flag}: no such file, folder or name", f"choose {DATASETS}")
    if not files:
        raise UserError(f"{flag}: no file of {' '.join(BUILDERS)} there")
    return files


def _standard_library():
    """Yield its files, without those of installed packages."""
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = {*folders} - {"site-packages", "dist-packages"}
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read_utf8(files):
    """Yield the texts, without the standard library's few test files in other encodings."""
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def open_streams(dataset):
    """Open a corpus as a list of streamed datasets of the package datasets."""
    files = _files(dataset)
    if files is None:
        return _open_hub(dataset)
    return _open_files(files, "ignore" if dataset == "stdlib" else "strict")


def _open_files(files, encoding_errors="strict"):
    opened = []
    for builder in dict.fromkeys(BUILDERS.values()):
        parts = [p for p in files if BUILDERS[p.suffix] == builder and p.stat().st_size]
        names = [glob.escape(str(p.resolve())) for p in parts]
        text = {"sample_by": "document", "encoding_errors": encoding_errors}
        options = text if builder == "text" else {}
        if names:
            opened.append(_load(builder, data_files=names, **options))
    return opened


def _open_hub(dataset):
    import_datasets()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    name, _, config = dataset.partition(":")
    flag = spelled("dataset", dataset)
    try:
        HfApi().dataset_info(name, timeout=5)
    except (RepositoryNotFoundError, HFValidationError):
        problem = "no such file or folder here, and no such public dataset on the Hub"
        raise UserError(f"{flag}: {problem}") from None
    except Exception as error:
        problem = f"the Hugging Face Hub cannot be reached ({type(error).__name__})"
        remedy = "use stdlib, synthetic, or a file or folder of text"
        raise UserError(f"{flag}: {problem}", remedy) from None
    return [_load(name, config or None)]


def _load(*name, **options):
    """Open a dataset as a stream of rows."""
    options |= {"split": "train", "streaming": True, "cache_dir": str(paths.CACHE / "datasets")}
    return import_datasets().load_dataset(*name, **options)


def import_datasets():
    try:
        import datasets
    except ModuleNotFoundError:
        remedy = "pip install datasets, or use stdlib or synthetic"
        raise UserError("--dataset: reading this needs the package datasets", remedy) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it also raises what it logs
    return datasets


def _read(opener, corpus):
    for rows in opener(corpus):
        yield from texts(rows)


def texts(rows):
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise ValueError(f"a row has no string in the field text; it has {', '.join(row)}")
        yield row["text"]


def readable(dataset, documents):
    """Yield the documents that hold text. Raises UserError for any error of a reader."""
    with one_line(dataset):
        for text in documents:
            if "\0" in text:
                raise UserError(f"{spelled('dataset', dataset)}: holds binary data, not text")
            if text.strip():
                yield text


@contextmanager
def one_line(dataset):
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
