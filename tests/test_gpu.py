"""What only a GPU can show. Run by `make gpu-check`; every test here is marked gpu."""

import gzip
import json
import re
import time
from functools import cache
from itertools import count
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import no_optimization
from tests.helpers import processes
from Utils.base.errors import Unsupported
from Utils.data import TokenBatches
from Utils.harness.script_start import start
from Utils.harness.settings import parse_args
from Utils.results import rows_file
from Utils.scripts import ladder

pytestmark = pytest.mark.gpu
MEMORY = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0


# A shape at which the baseline leaves room to this process.
B, T = (8, 512) if MEMORY > 12 * 2**30 else (2, 256)
SMALL = ["--device=cuda", f"--batch-size={B}", f"--seq-len={T}", "--min-seconds=0"]


@pytest.fixture
def settle(tmp_path):
    def settle(*flags):
        file = f"--results-file={tmp_path / 'results.csv'}"
        return parse_args("", [*SMALL, file, *flags], "no_optimization")

    return settle


def run(folder, name, *flags, launcher=()):
    """Run a script on the GPU. Return its CompletedProcess and its rows."""
    file = folder / f"{name}.csv"
    words = [*launcher, *ladder.get(name).command, *SMALL, *flags, f"--results-file={file}"]
    ended = processes.command(*words)
    rows = rows_file.read(file)
    if rows.status[0] == "unsupported":
        pytest.skip(f"{name}: {rows.note[0]}")
    return ended, rows


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Rows and records of scripts run on the GPU: scripts("torch_compile") runs it once."""
    folder = tmp_path_factory.mktemp("scripts")

    @cache
    def scripts(name):
        _, rows = run(folder, name, "--steps=15")
        records = rows_file.read_records(folder / f"{name}.csv", rows.run_id.unique())
        (record,) = records.values()
        return SimpleNamespace(rows=rows, record=record)

    return scripts


class StopwatchBatches(TokenBatches):
    """Batches that note when each is requested, by another clock than the harness's."""

    def __iter__(self):
        self.requested_s = []
        for step in count():
            self.requested_s.append(time.monotonic())  # before the batch is drawn
            yield self[step]


def test_gpu_events_agree_with_a_stopwatch(settle, monkeypatch):
    args = settle("--steps=40")
    batches = StopwatchBatches(args)
    monkeypatch.setattr(no_optimization, "TokenBatches", lambda args: batches)
    no_optimization.main(args)

    step_ms = rows_file.read(args.results_file).step_ms
    stopwatch_s = batches.requested_s[-1] - batches.requested_s[5]
    assert step_ms[5:-1].sum() == pytest.approx(1e3 * stopwatch_s, rel=0.01)


LADDER = "tensorFloat32 torch_compile flash_attention padded_vocabulary fused_cross_entropy"
OTHER_BATCHES = "asynchronous_logging prefetching_loader data_on_device"
OTHER_KERNELS = "cudnn_attention cuda_graphs deterministic"
LESS_MEMORY = "gradient_checkpointing gradient_accumulation optimizer_in_backward"


@pytest.mark.parametrize(
    "names, parent, rel",
    [
        (f"{LADDER} {OTHER_BATCHES}", "no_optimization", 2**-6),
        ("prefetching_loader", "asynchronous_logging", 1e-4),
        (f"{OTHER_KERNELS} {LESS_MEMORY}", "fused_optimizer", 2**-6),
    ],
)
def test_gpu_losses_are_the_parents(names, parent, rel, scripts):
    expected = scripts(parent).rows.loss
    for name in names.split():
        losses = scripts(name).rows.loss
        assert list(losses) == pytest.approx(list(expected), rel=rel), name
        assert losses.nunique() == len(losses) and losses.iloc[-1] < losses.iloc[0] - 1


@pytest.mark.parametrize(
    "dtype, N",
    [(torch.float32, 64), (torch.float16, 64), (torch.bfloat16, 2**31 // 50_304 + 8)],
)
def test_gpu_cross_entropy_is_pytorchs_beyond_2_31_logits(dtype, N):
    pytest.importorskip("triton")
    from beyond.loss.fused_cross_entropy import FusedCrossEntropy

    if 1.5 * N * 50_304 * dtype.itemsize > MEMORY:
        pytest.skip("the logits do not fit")
    torch.manual_seed(0)
    logits = torch.randn(N, 50_304, dtype=dtype, device="cuda", requires_grad=True)
    targets = torch.randint(50_257, (N,), device="cuda")
    last = logits[-64:, :50_257].detach().double().requires_grad_()
    expected = F.cross_entropy(last, targets[-64:], reduction="sum") / N
    expected.backward()

    loss = FusedCrossEntropy.apply(logits, targets, 50_257)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert N > 64 or loss.item() == pytest.approx(expected.item(), rel=1e-5)
    rtol = 1e-4 if dtype == torch.float32 else torch.finfo(dtype).eps
    atol = 6e-8 if dtype == torch.float16 else 1e-12
    torch.testing.assert_close(gradient[-64:, :50_257].double(), last.grad, rtol=rtol, atol=atol)
    assert not gradient[:, 50_257:].any()


def test_gpu_deterministic_run_repeats_exactly(scripts, tmp_path):
    first = scripts("deterministic").rows
    _, again = run(tmp_path, "deterministic", "--steps=15")
    assert list(again.loss) == list(first.loss)


def test_gpu_graphs_record_all_launches(settle):
    from torch._dynamo.utils import counters

    from beyond.launching import cuda_graphs

    before = counters["inductor"].copy()
    needs = ladder.docstring_facts(cuda_graphs.__doc__)["needs"]
    args = settle("--steps=8").replace(needs=needs)
    try:
        start(cuda_graphs.main, args)
    except Unsupported as reason:
        pytest.skip(str(reason))
    after = counters["inductor"]  # not the object of before: Inductor has put a copy there
    assert after["cudagraph_skips"] == before["cudagraph_skips"]
    recorded = "cudagraph_recorded_non_static_inputs"
    assert after[recorded] > before[recorded]


def test_gpu_largest_batch_fits_and_its_double_does_not(tmp_path):
    ended, rows = run(tmp_path, "larger_batch", "--steps=8")
    (largest,) = rows.batch_size.unique()
    assert largest >= B and largest & (largest - 1) == 0
    assert f"batch of {2 * largest}: out of memory" in ended.stderr


LEARNS = "streaming_dataset max_autotune all_together all_together_float8 fully_sharded"
LEARNS += " float16_grad_scaler zero_redundancy no_sync pure_bfloat16 float8_linear untied_weights"


@pytest.mark.parametrize("name", LEARNS.split())
def test_gpu_scripts_with_other_losses_learn(name, scripts):
    losses, baseline = (scripts(each).rows.loss for each in (name, "no_optimization"))
    assert losses[0] == pytest.approx(baseline[0], rel=2**-6)
    assert len(losses) == 15 and losses.iloc[-1] < losses[0] - 1


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Of a technique's profile on the GPU: summary and names of operators."""
    results_file = tmp_path_factory.mktemp("profiled") / "results.csv"
    folder = results_file.with_name("profiles")

    def profiled(name):
        words = ["-m", "tools.profile", f"T={name}", *SMALL, "--steps=12"]
        processes.command(*words, f"--results-file={results_file}")
        file = folder / f"{name}.json"
        if not file.exists():
            pytest.skip(f"{name}: does not run here")
        summary = json.loads(file.read_text())
        with gzip.open(folder / f"{name}.trace.json.gz", "rt") as file:
            names = {str(event.get("name")) for event in json.load(file)["traceEvents"]}
        return SimpleNamespace(summary=summary, names=names)

    return profiled


@pytest.mark.parametrize("name", ["no_optimization", "flash_attention", "asynchronous_logging"])
def test_gpu_profile_accounts_for_the_step(name, profiled):
    profile = profiled(name)
    measured, clock_ms = profile.summary["profile"], profile.summary["clock_ms"]
    assert measured["mean_step_ms"] == pytest.approx(sum(clock_ms) / len(clock_ms), rel=0.05)
    share = {kind: facts["share"] for kind, facts in measured["kinds"].items()}
    assert sum(share.values()) == pytest.approx(1, rel=0.01) and share["other"] < 0.05
    assert share["matmul"] > 0.1 and share["optimizer"] > 0.01
    assert (share["attention"] > 0.001) == (name != "no_optimization")
    assert measured["kinds"]["copies"]["parts"]["transfers"] > 0


@pytest.mark.parametrize(
    "name, kernels",
    [("torch_compile", ""), ("flash_attention", "flash|cudnn"), ("cudnn_attention", "cudnn")],
)
def test_gpu_attention_is_the_one_of_the_script(name, kernels, profiled):
    """Were explicit attention replaced in torch_compile, that rung would measure the next one."""
    fused = r"aten::_scaled_dot_product_(\w+)_attention"
    used = {match[1] for match in map(re.compile(fused).match, profiled(name).names) if match}
    assert bool(used) == bool(kernels) and all(re.fullmatch(kernels, kernel) for kernel in used)


@pytest.mark.parametrize("ranks", [1, 2])
def test_gpu_ranks_train_as_one_process(ranks, tmp_path):
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    _, alone = run(tmp_path, "asynchronous_logging", "--steps=6", "--warmup=3")
    for name in ("distributed_data_parallel", "gradient_compression"):
        _, rows = run(tmp_path, name, "--steps=6", "--warmup=3", launcher=torchrun)
        assert set(rows.world_size) == {ranks}
        assert list(rows.loss) == pytest.approx(list(alone.loss), rel=2**-8)
