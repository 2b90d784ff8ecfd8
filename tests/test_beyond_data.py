"""How batches reach the device: what a loop waits for, and the workers that it has."""

import itertools
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from beyond.data import data_on_device, prefetching_loader, streaming_dataset
from beyond.launching import asynchronous_logging
from beyond.loss import padded_vocabulary
from tests.helpers.rows import study_of
from tools.calibration import watched
from Utils import data
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.errors import Unsupported, UserError
from Utils.corpus import token_cache
from Utils.corpus.token_cache import END_OF_TEXT
from Utils.data import StreamedBatches, TokenBatches
from Utils.harness.settings import check_need, parse_args
from Utils.results import rows_file
from Utils.run import Run

TINY = ["--model", "gpt2-tiny", "--device", "cpu", "--batch-size", "2", "--seq-len", "32"]
TINY += ["--steps", "6", "--warmup", "1"]
FEW = ["--seq-len", "8"]  # tokens where a model trains: many a CPU emulates bfloat16, slowly


@pytest.fixture
def settle(tmp_path, monkeypatch):
    """parse_args for a tiny run in this process, its results in a folder of their own."""

    def settle(*flags, script=padded_vocabulary, dataset="synthetic"):
        file = ["--results-file", str(tmp_path / "results.csv"), "--dataset", str(dataset)]
        name = script.__name__.rpartition(".")[2]
        return parse_args("", [*TINY, *file, *flags], name)

    return settle


@pytest.fixture
def eager(monkeypatch):
    """Compiling takes seconds, and Dynamo does not go with a dispatch mode."""
    monkeypatch.setattr(torch, "compile", lambda model: model)


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """Has every corpus be a file of tokens that is mapped into memory."""
    path = tmp_path / "tokens.bin"
    np.random.default_rng(1).integers(50_257, size=100_000, dtype=np.uint16).tofile(path)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    monkeypatch.setattr(data, "load_tokens", lambda dataset: (tokens, {"dataset": dataset}))
    return tokens


def loader_of(batches, **options):
    return DataLoader(batches, batch_size=None, **batches.worker_options, **options)


def workers():
    """What descends from this process by way of its server of forks."""
    ours = psutil.Process().children(recursive=True)
    return [process for process in ours if process.ppid() != os.getpid()]


def same(batch, other):
    return all(map(torch.equal, batch, other))


class Watched(Run):
    def steps(self, batches):
        steps = super().steps(batches)
        yield next(steps)  # a loader that starts draws a number on the host
        with watched.NoSynchronization():
            yield from steps


@pytest.mark.parametrize(
    "script", [asynchronous_logging, prefetching_loader, data_on_device], ids=lambda s: s.__name__
)
def test_losses_are_the_parents_to_the_last_bit_and_the_loop_reads_none(
    script, settle, eager, mapped, monkeypatch
):
    padded_vocabulary.main(settle(*FEW))
    args = settle(*FEW, script=script)
    monkeypatch.setattr(script, "Run", Watched)
    script.main(args)
    rows = rows_file.read(args.results_file)
    parent, child = (run.loss.to_list() for _, run in rows.groupby("run_id", sort=False))
    assert len(parent) == 6 and parent[0] != parent[-1]
    assert child == parent
    monkeypatch.setattr(padded_vocabulary, "Run", Watched)
    with pytest.raises(AssertionError, match="the loop read a tensor"):  # as the parent's does
        padded_vocabulary.main(settle(*FEW))


def test_a_run_that_waits_for_data_says_so(settle):
    class Slow(TokenBatches):
        def __getitem__(self, step):
            time.sleep(self.data_s if step else 0.5)
            return super().__getitem__(step)

    much = r"waits for data (5|6)\d% of the time"
    for data_s, compute_s, share in ((0.3, 0.2, much), (0.03, 1, None)):
        args, Slow.data_s = settle("--steps", "3"), data_s
        for run in watched.idle_steps(args, Slow):
            time.sleep(compute_s)
            run.log(1.0)
        notes = "; ".join(args.notes)
        assert re.search(share, notes) if share else "waits" not in notes


def test_workers_give_the_same_batches_in_the_same_order_and_end_with_the_loop(settle, mapped):
    args = settle()
    batches = TokenBatches(args)
    state = torch.get_rng_state()
    loader = loader_of(batches, sampler=range(args.steps), num_workers=2)
    assert not workers()
    stream = iter(loader)
    for step, batch in enumerate(itertools.islice(stream, args.steps)):
        assert same(batch, batches[step])
        assert len(workers()) == 2
    assert torch.equal(torch.get_rng_state(), state)
    del stream
    assert not workers()


def test_a_worker_maps_the_tokens_instead_of_copying_them(settle, mapped):
    batches = TokenBatches(settle())
    sent = pickle.dumps(batches)
    assert len(sent) < 1000 < mapped.nbytes
    copy = pickle.loads(sent)
    assert isinstance(copy.tokens, np.memmap) and same(copy[3], batches[3])
    batches = TokenBatches(settle())
    batches.tokens = np.array(mapped)  # the synthetic corpus is in no file
    assert same(pickle.loads(pickle.dumps(batches))[3], batches[3])


LOOP = """
import psutil, sys
from beyond.data import prefetching_loader
from Utils import run
from Utils.harness.script_start import call, parse_args

def log(self, loss):
    if len(self.data_ms) == 2:
        print(*(process.pid for process in psutil.Process().children(recursive=True)), flush=True)
        BREAK
    self.losses.append(loss.detach())

run.Run.log = log
call(prefetching_loader.main, parse_args("", sys.argv[1:], "prefetching_loader"))
"""


def broken_off(code, tmp_path):
    """A process that trains in this way, or will, in a session of its own."""
    command = [sys.executable, "-c", code, *TINY, "--steps", "1000000", "--dataset", "synthetic"]
    command += ["--results-file", str(tmp_path / "results.csv")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    return subprocess.Popen(
        command, cwd=paths.ROOT, env=environment, start_new_session=True, **pipes
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, "ValueError"])
def test_no_worker_outlives_a_run_that_breaks_off(how, tmp_path):
    broken = 'raise ValueError("x")' if how == "ValueError" else "pass"
    process = broken_off(LOOP.replace("BREAK", broken), tmp_path)
    descendants = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(descendants) == 4  # the server of forks, multiprocessing's tracker, two workers
    if how == signal.SIGKILL:
        process.kill()
    elif how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    said = process.communicate(timeout=60)[1]  # which a worker that is left would keep open
    codes = {"ValueError": 1, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
    assert process.returncode == codes[how]
    assert not psutil.wait_procs(descendants, timeout=4)[1]
    if how == signal.SIGINT:
        assert said.endswith("\nprefetching_loader: interrupted; nothing was recorded\n")
    assert said.count("Traceback") == (how == "ValueError"), said


HANGS_UP = """
import os, signal, time
from multiprocessing import resource_sharer
from multiprocessing.connection import SocketClient

@staticmethod
def hang_up(shared):
    SocketClient(shared[0]).close()
    time.sleep(0.5)  # for the worker to see it
    os.killpg(0, signal.SIGINT)
"""


@pytest.mark.slow
def test_ctrl_c_while_a_batch_is_handed_over_ends_quietly(tmp_path):
    code = LOOP.replace("BREAK", "resource_sharer._ResourceSharer.get_connection = hang_up")
    process = broken_off(HANGS_UP + code, tmp_path)
    said = process.communicate(timeout=60)[1]
    assert said.endswith("\nprefetching_loader: interrupted; nothing was recorded\n")
    assert "Traceback" not in said, said


@pytest.mark.slow
def test_ctrl_c_while_workers_start_ends_them_quietly(tmp_path):
    process = broken_off(LOOP.replace("BREAK", "pass"), tmp_path)
    assert any("first step" in line for line in process.stderr)
    ours = psutil.Process(process.pid)
    while len(descendants := ours.children(recursive=True)) < 3:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1]  # which a worker that is left would keep open
    assert said == "\nprefetching_loader: interrupted; nothing was recorded\n"
    assert not psutil.wait_procs(descendants, timeout=4)[1]


@pytest.fixture
def folder(tmp_path):
    """Six files, each of its own word."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"{number} " * 250)
    (folder / "5.jsonl").write_text(json.dumps({"text": "5 " * 250}) + "\n")
    return folder


def streamed(args):
    return StreamedBatches(args, streaming_dataset.tokenized)


def words(batch):
    return {*token_cache.gpt2_encoding().decode(batch[0].flatten().tolist()).replace(" ", "")}


def test_a_stream_holds_every_document_whole_and_begins_again(settle, folder):
    batches = streamed(settle(dataset=folder))
    drawn = list(itertools.islice(batches, 60))
    for (idx, targets), (following, _) in itertools.pairwise(drawn):
        assert idx.shape == targets.shape == (2, 32) and idx.dtype == torch.int64
        assert torch.equal(idx.flatten()[1:], targets.flatten()[:-1])
        assert targets[-1, -1] == following[0, 0]
    tokens = torch.cat([idx.flatten() for idx, _ in drawn]).tolist()
    text = token_cache.gpt2_encoding().decode(tokens).split("<|endoftext|>")[:-1]
    assert {*text[:6]} == {*text[6:12]} == {f"{number} " * 250 for number in range(6)}
    assert tokens.count(END_OF_TEXT) == len(text)


def test_the_order_depends_on_the_seed_alone(settle, folder):
    seeds = (0, 0, 1, 2, 3)
    first = [next(iter(streamed(settle(f"--seed={seed}", dataset=folder)))) for seed in seeds]
    assert same(first[0], first[1])
    assert not all(same(first[0], other) for other in first[2:])


def test_workers_share_the_files_and_one_without_any_does_no_harm(settle, folder):
    args = settle(dataset=folder)
    loader = loader_of(streamed(args), num_workers=2)
    batches = list(itertools.islice(loader, 12))  # less than either has in its files
    first, second = (
        set().union(*map(words, batches[worker::2])) - {*"<|endoftxof>"} for worker in (0, 1)
    )
    assert len(first) > 1 and len(second) > 1 and not first & second
    args = settle(dataset=folder / "3.txt")
    loader = loader_of(streamed(args), num_workers=2)
    assert all("3" in words(batch) for batch in itertools.islice(loader, 5))


def test_streaming_trains_and_its_losses_stand_alone(settle, folder, eager):
    baseline = settle(*FEW)
    baseline.technique = "no_optimization"
    padded_vocabulary.main(baseline)
    args = settle(*FEW, "--steps", "24", script=streaming_dataset, dataset=folder)
    streaming_dataset.main(args)
    rows = rows_file.read(args.results_file)
    own = rows[rows.run_id == args.run_id]
    assert len(own) == 24 and own.loss.tail(8).mean() < own.loss.head(8).mean()
    assert "other batches" in own.note.iloc[0]
    records = rows_file.read_records(args.results_file, rows.run_id.unique())
    lines = summarize(study_of(rows, records)).lines
    assert lines.parity["streaming_dataset"] == "other batches"
    assert not lines.loss_difference["streaming_dataset"]


@pytest.mark.parametrize(
    ("content", "words"), [(b" \n", "holds no more text"), (b"a\0b", "holds binary data, not text")]
)
def test_what_a_worker_cannot_read_is_one_line(content, words, settle, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    args = settle(dataset=tmp_path / "a.txt")
    loader = loader_of(streamed(args), num_workers=1)
    with pytest.raises(UserError) as caught, Run(args, torch.nn.Linear(1, 1), None) as run:
        next(run.steps(loader))
    assert str(caught.value) == f"--dataset {tmp_path / 'a.txt'}: {words}"


def test_what_cannot_be_streamed_says_so_before_there_is_a_model(settle, monkeypatch):
    def unresolved(*args, **kwargs):
        raise socket.gaierror("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    with pytest.raises(Unsupported, match="there is no text to stream"):
        check_need("text", settle(dataset="synthetic"))
    with pytest.raises(UserError, match="Hub cannot be reached.*use stdlib") as caught:
        streamed(settle(dataset="owner/name"))
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unsupported, match="needs datasets"):
        check_need("package datasets", settle())
