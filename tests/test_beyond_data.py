"""How batches reach the device: what a loop waits for, and the workers that it has."""

import itertools
import json
import os

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from beyond.data import data_on_device, prefetching_loader, streaming_dataset
from beyond.launching import asynchronous_logging
from beyond.loss import padded_vocabulary
from tests.helpers import watched
from tests.helpers.rows import study_of
from Utils.analysis.summary import summarize
from Utils.corpus.token_cache import gpt2_encoding
from Utils.data import StreamedBatches, TokenBatches
from Utils.results import rows_file
from Utils.run import Run

TINY = [
    "--model=gpt2-tiny",
    "--device=cpu",
    "--batch-size=2",
    "--seq-len=8",
    "--steps=6",
    "--warmup=1",
]


@pytest.fixture
def settle(tmp_path):
    """Function of flags, a script and a dataset that returns the Settings of a tiny run."""

    def settle(*flags, script=padded_vocabulary, dataset="synthetic"):
        return watched.settle(script, tmp_path, *TINY, f"--dataset={dataset}", *flags)

    return settle


@pytest.fixture
def eager(monkeypatch):
    """Compiling takes seconds, and Dynamo does not go with a dispatch mode."""
    monkeypatch.setattr("torch.compile", lambda model: model)


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """Have every corpus be a file of tokens that is mapped into memory."""
    path = tmp_path / "tokens.bin"
    np.random.default_rng(1).integers(50_257, size=100_000, dtype=np.uint16).tofile(path)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    monkeypatch.setattr("Utils.data.load_tokens", lambda dataset: (tokens, {"dataset": dataset}))
    return tokens


def loader_of(batches, **options):
    return DataLoader(batches, batch_size=None, **batches.worker_options, **options)


def workers():
    """Return what descends from this process by way of its server of forks."""
    children = psutil.Process().children(recursive=True)
    return [process for process in children if process.ppid() != os.getpid()]


def same(batch, expected):
    return all(map(torch.equal, batch, expected))


class Watched(Run):
    def steps(self, batches):
        steps = super().steps(batches)
        yield next(steps)  # a loader that starts draws a number on the host
        with watched.NoSynchronization():
            yield from steps


@pytest.mark.parametrize(
    "script", [asynchronous_logging, prefetching_loader, data_on_device], ids=lambda s: s.__name__
)
def test_data_losses_equal_the_parents_and_the_loop_reads_none(
    script, settle, eager, mapped, monkeypatch
):
    """METHOD: "All scripts draw the same batches"; "a technique that removes a synchronization
    shows its gain".
    """
    padded_vocabulary.main(settle())
    args = settle(script=script)
    monkeypatch.setattr(script, "Run", Watched)
    script.main(args)
    rows = rows_file.read(args.results_file)
    parent, child = (run.loss.to_list() for _, run in rows.groupby("run_id", sort=False))
    assert len({*parent}) == 6 and child == parent


def test_data_workers_keep_the_order_and_end_with_the_loop(settle, mapped):
    batches = TokenBatches(settle())
    state = torch.get_rng_state()
    stream = iter(loader_of(batches, sampler=range(6), num_workers=2))
    for step in range(5):
        assert same(next(stream), batches[step]) and len(workers()) == 2
    assert torch.equal(torch.get_rng_state(), state)
    del stream
    assert not workers()


@pytest.fixture
def folder(tmp_path):
    """Six files, each of its word."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"{number} " * 250)
    (folder / "5.jsonl").write_text(json.dumps({"text": "5 " * 250}) + "\n")
    return folder


def streamed(args):
    return StreamedBatches(args, streaming_dataset.tokenized)


def decoded(batches):
    return gpt2_encoding().decode(torch.cat([idx.flatten() for idx, _ in batches]).tolist())


def test_data_stream_has_every_document_complete_and_begins_again(settle, folder):
    drawn = [*itertools.islice(streamed(settle(dataset=folder)), 250)]
    for (idx, targets), (following, _) in itertools.pairwise(drawn):
        assert idx.shape == (2, 8) and torch.equal(idx.flatten()[1:], targets.flatten()[:-1])
        assert targets[-1, -1] == following[0, 0]
    documents = decoded(drawn).split("<|endoftext|>")[:-1]
    assert {*documents[:6]} == {*documents[6:12]} == {f"{number} " * 250 for number in range(6)}


def test_data_stream_has_an_order_by_the_seed_alone(settle, folder):
    seeds = (0, 0, 1, 2, 3)
    texts = [decoded([next(iter(streamed(settle(f"--seed={s}", dataset=folder))))]) for s in seeds]
    assert texts[0] == texts[1] and len({*texts}) > 1


def test_data_stream_trains_and_its_losses_are_compared_with_none(settle, folder, eager):
    """METHOD: "`other batches`: the script streams its text, so its losses have no counterpart"."""
    padded_vocabulary.main(settle("--steps=2").replace(technique="no_optimization"))
    args = settle("--steps=24", script=streaming_dataset, dataset=folder)
    streaming_dataset.main(args)
    rows = rows_file.read(args.results_file)
    stream = rows[rows.run_id == args.run_id]
    assert len(stream) == 24 and stream.loss.tail(8).mean() < stream.loss.head(8).mean()
    records = rows_file.read_records(args.results_file, rows.run_id.unique())
    line = summarize(study_of(rows, records)).scripts["streaming_dataset"]
    assert line.parity == "other batches" and not line.loss_difference
