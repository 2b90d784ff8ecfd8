"""Other kernels, other launches, another batch: what each must leave as it was, and its needs."""

import contextlib
import os
import subprocess
from dataclasses import replace

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from torch.nn.attention import SDPBackend

from beyond.attention import cudnn_attention
from tests.helpers.rows import rows_of
from tests.helpers.stand_ins import gpu
from tools.calibration.watched import STEPS
from Utils.analysis import result_tables
from Utils.analysis.summary import summarize
from Utils.base import paths
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities
from Utils.device.capabilities import CHECKS
from Utils.device.cpu import CPU
from Utils.harness import batch_trials, script_start
from Utils.harness.settings import Settings
from Utils.results import rows_file, selection, study

SHAPE = "--batch-size=2", "--seq-len=8"


def test_cudnn_attention_allows_cudnn_alone_and_computes_what_its_parent_does(train, monkeypatch):
    allowed = []

    @contextlib.contextmanager
    def sdpa_kernel(backend):
        allowed.append(backend)
        yield

    monkeypatch.setattr(cudnn_attention, "sdpa_kernel", sdpa_kernel)
    monkeypatch.setitem(CHECKS, "cudnn_attention", lambda device: None)
    parent = train("fused_optimizer").losses
    assert train("cudnn_attention").losses == parent and parent[0] != parent[-1]
    assert allowed == [SDPBackend.CUDNN_ATTENTION] * STEPS * 2  # layers


def test_max_autotune_asks_for_it_and_prints_no_candidates(train, monkeypatch):
    config = torch._inductor.config
    monkeypatch.setattr(config, "autotune_num_choices_displayed", 10)
    asked = []

    def compile(model, **options):
        asked.append((options, config.autotune_num_choices_displayed))
        return model

    losses = train("max_autotune", compile=compile).losses
    assert losses == train("fused_optimizer").losses
    assert asked == [({"mode": "max-autotune-no-cudagraphs"}, 0)]


class Replay:
    """Stands in for a model in CUDA graphs: every step writes its loss and its gradients where the
    last one's were, and whoever still holds gradients then would see them overwritten."""

    def __init__(self, model, mode):
        assert mode == "reduce-overhead"
        self.model, self.loss = model, torch.zeros(())

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, idx, targets):
        assert all(p.grad is None for p in self.model.parameters()), "kept gradients"
        logits, loss = self.model(idx, targets)
        self.loss.copy_(loss.detach())
        loss.data = self.loss
        return logits, loss


def test_losses_are_kept_although_each_replay_writes_over_the_last_one(train):
    expected = train("padded_vocabulary").losses
    watch = train("cuda_graphs", compile=Replay)
    assert watch.losses == expected and len(set(expected)) == STEPS
    assert all(isinstance(loss, torch.Tensor) for loss in watch.logged), "it waited for the loss"
    assert not any(loss.requires_grad for loss in watch.logged), "it keeps every step's graph"
    assert "CUDA graphs: no effect on this device" in watch.args.notes
    assert capabilities.check("cuda_graphs", gpu()) == ""


@pytest.fixture
def restored(monkeypatch):
    """Four threads, and torch's switches as they were afterwards."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    threads, fill = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def test_two_runs_of_one_seed_are_the_same_to_the_last_bit(train, restored):
    """Compiled, as the script is, of one layer. On a busy machine threads may not race, so that its
    kernels are looked at as well: in the parent's, several threads add to one address."""
    options = {"config": replace(CONFIGS["gpt2-tiny"], n_layer=1), "compile": None}
    parent, racing = run_and_get_code(train, "fused_optimizer", *SHAPE, **options)
    first, ordered = run_and_get_code(train, "deterministic", *SHAPE, **options)
    assert "atomic_add" in "".join(racing) and "atomic_add" not in "".join(ordered)
    assert first.losses == train("deterministic", *SHAPE, **options).losses
    assert len(set(first.losses)) == STEPS
    assert first.losses == pytest.approx(parent.losses, rel=2**-8)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


class Trials:
    """Stands in for the processes that try a batch: what fits, how fast, and what was tried."""

    def __init__(self, largest=2**30, speed=lambda B: 100.0 * B, seconds=1.0):
        self.largest, self.speed, self.seconds, self.tried = largest, speed, seconds, []

    def __call__(self, args, technique, batch_size):
        self.tried.append(batch_size)
        speed = self.speed(batch_size) if batch_size <= self.largest else 0.0
        return speed, self.seconds


def search(monkeypatch, stand_in, device, asked=16, at_most=4096):
    monkeypatch.setattr(batch_trials, "run", stand_in)
    monkeypatch.delenv("SUITE_ID", raising=False)
    args = Settings(batch_size=asked, seq_len=64, steps=50, hardware=device, notes=[])
    args.technique = "larger_batch"
    return batch_trials.largest_batch(args, "fused_optimizer", at_most), args.notes


def test_on_a_gpu_the_batch_is_doubled_until_memory_is_out(monkeypatch):
    slower = Trials(largest=200, speed=lambda B: 1 / B, seconds=1e6)
    assert search(monkeypatch, slower, gpu()) == (128, ["own batch: 128 in place of 16"])
    assert slower.tried == [16, 32, 64, 128, 256]
    bounded = Trials()
    assert search(monkeypatch, bounded, gpu(), at_most=64)[0] == 64 == bounded.tried[-1]
    assert search(monkeypatch, Trials(largest=16), gpu()) == (16, [])
    spills = Trials(speed=lambda B: 1000.0 if B <= 64 else 10.0)  # to the host, and never fails
    assert search(monkeypatch, spills, gpu())[0] == 64 and spills.tried[-1] == 128


def test_on_a_cpu_the_search_ends_where_it_no_longer_pays_or_takes_longer_than_the_run(monkeypatch):
    pays = Trials(speed=lambda B: min(B, 64))  # 16x64 tokens at 16 a second: 64 s a step
    assert search(monkeypatch, pays, CPU())[0] == 64 and pays.tried[-1] == 128
    slow = Trials(speed=lambda B: 1024.0 * B / 16, seconds=20.0)  # a run of 50 s
    assert search(monkeypatch, slow, CPU())[0] == 64 and slow.tried == [16, 32, 64]
    quick = Trials(speed=lambda B: 1e6, seconds=5.0)
    assert search(monkeypatch, quick, CPU()) == (16, []) and quick.tried == [16]
    broken = Trials(largest=0)
    assert search(monkeypatch, broken, CPU()) == (16, [])


def test_all_rounds_of_a_suite_take_the_batch_that_the_first_found(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CACHE", tmp_path)
    found = []
    for suite, largest in (("a", 64), ("a", 32), ("b", 32)):
        monkeypatch.setattr(batch_trials, "run", Trials(largest=largest))
        monkeypatch.setenv("SUITE_ID", suite)
        args = Settings(batch_size=16, seq_len=64, hardware=gpu(), notes=[], steps=5)
        args.technique = "larger_batch"
        found.append(batch_trials.largest_batch(args, "fused_optimizer", 4096))
    assert found == [64, 64, 32]


@pytest.mark.slow
def test_a_trial_is_the_script_itself_and_leaves_nothing_behind(
    settle, monkeypatch, tmp_path, capsys
):
    """Of the baseline, which compiles nothing."""
    args = settle(*SHAPE)
    speed, seconds = batch_trials.run(args, "no_optimization", 4)
    assert speed > 0 and seconds > 0 and not list(tmp_path.iterdir())
    out_of_memory = rows_of("no_optimization", [], status="out_of_memory")

    def fails(command, **options):
        if "--batch-size=16" in command:
            return subprocess.CompletedProcess(command, -9, "", "warming up\nno memory left\n")
        file = next(flag.partition("=")[2] for flag in command if "--results-file=" in flag)
        rows_file.append(file, out_of_memory)

    monkeypatch.setattr(subprocess, "run", fails)
    for size in (8, 16):
        assert batch_trials.run(args, "no_optimization", size)[0] == 0
    assert capsys.readouterr().err.splitlines() == [
        f"  no_optimization, batch of 4: {speed:,.0f} tokens/s",
        "  no_optimization, batch of 8: out of memory",
        "  no_optimization, batch of 16: ended with exit code -9 no memory left",
    ]


def test_larger_batch_trains_with_the_batch_that_was_found(train, monkeypatch):
    monkeypatch.delenv("SUITE_ID", raising=False)
    monkeypatch.setattr(batch_trials, "run", Trials(speed=lambda B: float(min(B, 8)), seconds=0.0))
    watch = train("larger_batch", *SHAPE)
    assert watch.args.batch_size == 8 and watch.args.notes[-1] == "own batch: 8 in place of 2"
    assert watch.losses != train("fused_optimizer", *SHAPE).losses


@pytest.fixture
def mixed(tmp_path):
    """A suite of two rounds at 16x64, in which larger_batch ran at 64x64, four times as long a
    step for four times the tokens, twice as fast in all."""
    own = {"batch_size": 64, "requested_batch_size": 16, "note": "own batch: 64 in place of 16"}
    file = tmp_path / "results.csv"
    for r in range(2):
        for name, ms in (("no_optimization", 400), ("fused_optimizer", 100 + r)):
            rows_file.append(file, rows_of(name, [ms] * 5, round=r, batch_size=16))
        rows_file.append(file, rows_of("larger_batch", [200 + 2 * r] * 5, round=r, **own))
    return rows_file.read(file)


def test_a_batch_of_ones_own_is_compared_by_tokens_with_the_suite_it_ran_in(mixed, tmp_path):
    selected = study.newest(mixed)
    described = selection.describe(selected.rows[::-1])
    assert not selected.left_out and "16x64 tokens a step" in described
    summary = summarize(selected)
    lines = summary.lines
    line = lines.loc["larger_batch"]
    assert line.parent_speedup.value == pytest.approx(2)
    assert line.parent_speedup.verdict == "faster"
    assert line.speedup.value == pytest.approx(2 * lines.speedup["fused_optimizer"].value)
    ms = (200 * 202) ** 0.5  # of 64 sequences; 16 were requested
    assert line.step_ms == pytest.approx(ms / 4) and line.own_batch == 64
    assert line.tokens_per_second == pytest.approx(64 * 64 / ms * 1e3)
    assert lines.own_batch.isna().sum() == 2
    assert not line.loss_difference and line[["parity"]].isna().all()  # other batches
    assert "own batch: 64 in place of 16" in result_tables.table(summary)
    rows_file.append(tmp_path / "results.csv", rows_of("no_optimization", [9] * 5, batch_size=64))
    selected = study.newest(rows_file.read(tmp_path / "results.csv"))
    assert set(selected.rows.technique) == {"no_optimization"} and "16x64" in selected.left_out


def test_a_run_that_failed_at_its_own_batch_stays_with_its_suite(settle, tmp_path):
    args = settle(*SHAPE)
    args.batch_size = 8
    script_start.record_end(args, "out_of_memory", "8x8 does not fit")
    (row,) = rows_file.text_rows(tmp_path / "results.csv")
    assert (row["batch_size"], row["requested_batch_size"]) == ("8", "2")
    assert row["note"] == "8x8 does not fit"
