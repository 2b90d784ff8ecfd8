"""Each script against its parent: losses, bytes and what is compiled, as its docstring claims."""

import functools
import importlib
import os
import tempfile
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import _registry
from torch.nn.attention.flex_attention import create_mask
from torch.profiler import ProfilerActivity, profile

from beyond.attention import flex_attention
from beyond.loss import padded_vocabulary
from tests.helpers import watched
from tests.helpers.stand_ins import doubled_batch
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import capabilities
from Utils.device.cpu import CPU
from Utils.harness import memory_kinds
from Utils.results import rows_file, study
from Utils.run import Run, execute
from Utils.scripts import ladder

V, C = 50_257, 64  # gpt2-tiny's
SHAPE = "--batch-size=4", "--seq-len=4"  # few tokens: many a CPU emulates bfloat16
ONE_LAYER = replace(CONFIGS["gpt2-tiny"], n_layer=1)
DEVICE = SimpleNamespace(peak_memory_mib=lambda: 10.0, reserved_memory_mib=lambda: None)
NORMS = {f"h.{layer}.ln_{n}.weight" for layer in (0, 1) for n in (1, 2)} | {"ln_f.weight"}
STEPS = 3

BOUNDS = {  # largest relative difference of any loss from the parent's
    "exact": (0, 0),
    "rounded": (0, 2**-12),  # another order of the same operations, on some CPUs the same one
    "coarser": (1e-8, 2**-10),  # fewer bits or other updates
    "chunked": (0, 2**-6),
    "larger": (1e-4, 0.1),  # batches
}
KINDS = ("weights", "gradients", "optimizer_state", "blocks", "logits")
# Each script over its parent: the bounds of its losses, and ratios of bytes by KINDS.
CLAIMS = """\
tensorFloat32           rounded  1     1      1      1       1
brainFloat16            coarser  1     1      1      0.53    1
torch_compile           exact    1     1      1      1       1
flash_attention         rounded  1     1      1      1       1
fused_optimizer         rounded  1     1      1      1       1
8bit_optimizer          coarser  1     1      0.256  1       1
cudnn_attention         exact    1     1      1      1       1
flash_attention_4       exact    1     1      1      1       1
deterministic           exact    1     1      1      1       1
explicit_mask           rounded  1     1      1      1       1
for_loop_optimizer      exact    1     1      1      1       1
gradient_clipping       coarser  1     1      1      1       1
perturbed_weights       rounded  1     1      1      1       1
muon                    coarser  1     1      0.984  1       1
untied_weights          coarser  1.95  1.95   1.95   1       1
float16_grad_scaler     coarser  1     1      1      0.53    1
asynchronous_logging    exact    1     1      1      1       1
cuda_graphs             exact    1     1      1      1       1
inductor_tuning         exact    1     1      1      1       1
max_autotune            exact    1     1      1      1       1
regional_compilation    exact    1     1      1      1       1
linear_cross_entropy    chunked  1     1      1      1       0
padded_vocabulary       rounded  1     1      1      1       1
activation_budget       exact    1     1      1      1       1
bfloat16_moments        coarser  1     1      0.5    1       1
expandable_segments     exact    1     1      1      1       1
gradient_accumulation   rounded  1     1      1      3.1     0.25
gradient_checkpointing  exact    1     1      1      0.0537  1
larger_batch            larger   1     1      1      1.3     2
optimizer_in_backward   exact    1     0.951  1      1       1
paged_optimizer         exact    1     1      1      1       1
selective_checkpointing exact    1     1      1      1       1
bfloat16_residual       coarser  1     1      1      0.964   1
float8_head             coarser  1     1      1      1       1
float8_linear           coarser  1     1      1      1.72    1
int8_linear             coarser  1     1      1      1.85    1
master_weights          coarser  1     1      2      1       1
pure_bfloat16           coarser  0.5   0.5    0.5    0.94    1
"""
BY_BLOCK = {"cross_entropy": {}, "Block": {}}  # what is compiled, with its options
OTHERS = {  # what else differs from the parent
    "torch_compile": {"compiled": {"GPT": {}}},
    "cudnn_attention": {"backends": {"CUDNN_ATTENTION"}},
    "flash_attention_4": {"backends": {"FLASH_ATTENTION"}},
    "asynchronous_logging": {"logged": torch.Tensor},
    "cuda_graphs": {"compiled": {"GPT": {"mode": "reduce-overhead"}}},
    "inductor_tuning": {"compiled": {"GPT": {"options": {"coordinate_descent_tuning": True}}}},
    "max_autotune": {"compiled": {"GPT": {"mode": "max-autotune-no-cudagraphs"}}},
    "regional_compilation": {"compiled": BY_BLOCK},
    "optimizer_in_backward": {"compiled": BY_BLOCK},
    "pure_bfloat16": {"still": NORMS},
}
PARENTS = {"bfloat16_residual": "padded_vocabulary"}  # whose loss it has here


def attention_kernels(patch, script):
    """Record the backends that a script allows, and allow all."""
    script.backends = set()
    allow = lambda backend: script.backends.add(backend.name) or nullcontext()  # noqa: E731
    patch.setattr(script, "sdpa_kernel", allow)
    unchanged = SimpleNamespace(remove=lambda: None)
    patch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA4", lambda: unchanged)


def emulated_float8(patch, script):
    float8 = pytest.importorskip("torchao.float8")
    config = float8.Float8LinearConfig(emulate=True)
    convert = partial(float8.convert_to_float8_training, config=config)
    patch.setattr(float8, "convert_to_float8_training", convert)


def rounded_moments(patch, script):
    """AdamW in float32 that rounds after each step, as one kernel of a GPU does."""
    step = torch.optim.AdamW.step

    def convert(optimizer, before, after):
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                assert state[name].dtype == before
                state[name] = state[name].to(after)

    def rounded(optimizer):
        convert(optimizer, torch.bfloat16, torch.float32)
        step(optimizer)
        convert(optimizer, torch.float32, torch.bfloat16)

    patch.setattr("torch.optim.AdamW.step", rounded)


STAND_INS = {
    "cudnn_attention": attention_kernels,
    "flash_attention_4": attention_kernels,
    "float8_head": emulated_float8,
    "float8_linear": emulated_float8,
    "bfloat16_moments": rounded_moments,
    "larger_batch": doubled_batch,
    "bfloat16_residual": lambda patch, script: patch.setattr(
        script, "cross_entropy", padded_vocabulary.cross_entropy
    ),
}


@functools.lru_cache(maxsize=6)
def trained(name):
    """Train a script eagerly, whatever it needs. Return its Watch, with `sizes` and `others`."""
    script = importlib.import_module(ladder.get(name).module)
    compiled = {}
    saved = {"blocks": 0, "logits": 0}

    def compile(target, **options):
        compiled[getattr(target, "__name__", type(target).__name__)] = options
        return target

    def pack(x):
        if max(x.shape, default=0) < V:
            saved["blocks"] += x.nbytes
        elif C not in x.shape:
            saved["logits"] = max(saved["logits"], x.nbytes)
        return x

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("tests.helpers.watched.STEPS", STEPS)
        STAND_INS.get(name, lambda *_: None)(patch, script)
        patch.setattr("torch.nn.Module.compile", lambda block: compile(block) and None)
        args = watched.settle(script, Path(folder), *SHAPE)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
        with hooks, torch.compiler.set_stance("force_eager"):
            watch = watched.train(script, args, compile)

    memory = memory_kinds.memory_by_kind(DEVICE, watch.model, watch.optimizer, watch.gradients.peak)
    watch.sizes = saved | {kind: memory[f"{kind}_mib"] for kind in KINDS[:3]}
    watch.others = {
        "compiled": {k: v for k, v in compiled.items() if k in ("GPT", "Block", "cross_entropy")},
        "backends": getattr(script, "backends", set()),
        "logged": type(watch.logged[0]),
        "rates": {
            (float(group["lr"]), group["weight_decay"], group.get("betas", (0.9, 0.999)))
            for optimizer in memory_kinds.optimizers(watch.optimizer)
            for group in optimizer.param_groups
        },
        "still": {n for n, p in watch.model.named_parameters() if torch.equal(p, watch.first[n])},
    }
    return watch


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("line", CLAIMS.splitlines())
def test_beyond_script_differs_from_its_parent_as_it_claims(line):
    name, bounds, *expected = line.split()
    child = trained(name)
    parent = trained(PARENTS.get(name) or ladder.get(name).parent)

    assert len({*parent.losses}) == STEPS
    low, high = BOUNDS[bounds]
    pairs = zip(child.losses, parent.losses, strict=True)
    assert low <= max(abs(ours / theirs - 1) for ours, theirs in pairs) <= high

    ratios = [child.sizes[kind] / parent.sizes[kind] for kind in KINDS]
    assert ratios == pytest.approx([*map(float, expected)], rel=0.03, abs=0.01)
    assert child.others == parent.others | OTHERS.get(name, {})


def test_beyond_master_weights_move_though_a_step_is_below_half_a_unit():
    """The float32 copies move at once; the weights, 0.004 apart near 1.0, not yet."""
    child = trained("master_weights")
    masters = child.optimizer.param_groups[0]["params"]
    assert {master.dtype for master in masters} == {torch.float32}
    named = dict(zip(child.first, masters, strict=True))
    assert all((named[name] != 1).any() for name in NORMS)
    assert all(torch.equal(named[n].bfloat16(), p) for n, p in child.model.named_parameters())


def test_beyond_stochastic_rounding_moves_some_weights_by_a_whole_unit(train):
    pytest.importorskip("torchao")
    with torch.compiler.set_stance("force_eager"):
        model = train("stochastic_rounding").model
    norms = torch.cat([p for name, p in model.named_parameters() if name in NORMS])
    assert norms.dtype == torch.bfloat16
    assert 1.0 in {*norms.tolist()} <= {1.0, 1 - 2**-8, 1 + 2**-7} and norms.min() < norms.max()


def test_beyond_products_of_the_blocks_are_of_integers_or_refused():
    """A CPU without VNNI overflows."""
    layer = trained("int8_linear").model.h[0].mlp.c_fc
    x = torch.randn(8, C)
    exact = F.linear(x, layer.weight, layer.bias)
    error = (layer(x) - exact).norm() / exact.norm()
    assert error > 0.001 and (error < 0.02) == capabilities.has("int8", CPU())  # 127 levels


def test_beyond_muon_takes_the_matrices_of_the_blocks_and_adamw_the_others():
    child = trained("muon")
    taken = [[p for g in o.param_groups for p in g["params"]] for o in child.optimizer]
    assert {*map(id, taken[0])} == {id(p) for p in child.model.h.parameters() if p.ndim == 2}
    assert {*map(id, sum(taken, []))} == {*map(id, child.model.parameters())}


def test_beyond_gradients_are_clipped_before_the_step(train, monkeypatch):
    norms = []
    clip = torch.nn.utils.clip_grad_norm_

    def watch(parameters, limit):
        parameters = [*parameters]
        assert clip(parameters, limit) > 1
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in parameters]))

    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", watch)
    train("gradient_clipping", *SHAPE)
    assert norms == pytest.approx([1] * watched.STEPS, rel=1e-3)


def test_beyond_padded_columns_reach_neither_the_loss_nor_a_gradient():
    logits, targets = torch.randn(4, 50_304), torch.tensor([0, 1, V - 2, V - 1])
    logits[:, V:] = 100
    sliced, masked = (logits.clone().requires_grad_() for _ in range(2))
    losses = (
        F.cross_entropy(sliced[:, :V], targets),
        padded_vocabulary.cross_entropy(masked, targets),
    )
    sum(losses).backward()
    assert losses[0] == losses[1] and torch.equal(masked.grad, sliced.grad)


def test_beyond_mask_of_flex_attention_is_the_causal_one():
    mask = create_mask(flex_attention.causal, 1, 1, 8, 8, device="cpu")
    assert torch.equal(mask[0, 0], torch.ones(8, 8, dtype=torch.bool).tril())


def test_beyond_max_autotune_prints_no_candidates():
    trained("max_autotune")
    assert torch._inductor.config.autotune_num_choices_displayed == 0


@pytest.fixture
def restored(monkeypatch):
    """Four threads, and torch's switches as they were afterwards."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.compiler.reset()


def test_beyond_deterministic_sets_the_switches_of_torch(train, restored):
    train("deterministic", *SHAPE)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.slow
def test_beyond_chunked_loss_has_the_parents_gradients_in_less_memory(train, restored, monkeypatch):
    monkeypatch.setattr("tests.helpers.watched.STEPS", 2)
    monkeypatch.setattr("torch.optim.AdamW.zero_grad", lambda *args, **options: None)
    watches = []
    largest = []
    for name, options in (("fused_optimizer", {}), ("chunked_loss", {"compile": None})):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            watches.append(train(name, "--batch-size=4", "--seq-len=48", **options))
        largest.append(max(event.nbytes() for event in profiled.profiler.kineto_results.events()))

    parent, child = watches
    assert child.losses == pytest.approx(parent.losses, abs=1e-4)
    for ours, theirs in zip(child.model.parameters(), parent.model.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() < 0.02 * theirs.grad.norm()  # bfloat16's 8 bits
    assert largest[1] < 4 * 48 * V * 2 <= largest[0]  # in bfloat16


@pytest.mark.slow
def test_beyond_loss_outside_the_compiled_graph_reaches_all_parameters(train, restored):
    watch = train("linear_cross_entropy", *SHAPE, config=ONE_LAYER, compile=None)
    still = [n for n, p in watch.model.named_parameters() if torch.equal(p, watch.first[n])]
    assert still == []


@pytest.mark.slow
def test_beyond_activation_budget_keeps_fewer_activations(train, restored, monkeypatch):
    """In float32, which any CPU computes quickly."""
    monkeypatch.setattr("torch.autocast", lambda *args, **kwargs: nullcontext())
    compile = partial(torch.compile, backend="aot_eager_decomp_partition")
    kept = {}
    for script in ("fused_optimizer", "activation_budget"):
        sizes = []
        pack = lambda x: sizes.append(x.nbytes * (x.numel() < V * C)) or x  # noqa: B023, E731
        torch.compiler.reset()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            train(script, "--batch-size=4", "--seq-len=64", compile=compile)
        kept[script] = sum(sizes)
    assert kept["activation_budget"] < 0.8 * kept["fused_optimizer"]


def test_float16_overflow_skips_the_update_and_halves_the_scale(train, no_bfloat16, monkeypatch):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    monkeypatch.setattr("torch.amp.GradScaler", lambda device: scaler)
    watch = train("float16_fused_optimizer", "--seq-len=4")
    assert scaler.get_scale() == 2.0 ** (100 - watched.STEPS)
    assert all(torch.equal(p, watch.first[n]) for n, p in watch.model.named_parameters())
    assert memory_kinds.updates(watch.optimizer) == 0


def test_float16_takes_the_place_of_bfloat16_under_the_name_of_a_script(
    path, no_bfloat16, monkeypatch
):
    """Its losses are those of its diff on the float16 line; skipped updates are told."""
    monkeypatch.setattr("torch.compile", lambda model: model)
    # Other tests have compiled in this process.
    monkeypatch.setattr("Utils.harness.run_record.compilation", lambda: None)
    flags = "--model=gpt2-tiny --dataset=synthetic --device=cpu --steps=3 --warmup=1 --batch-size=2"
    flags = f"{flags} --seq-len=8 --min-seconds=0 --results-file={path}".split()
    for name in ("no_sync", "fused_optimizer", "float16_fused_optimizer"):
        with suppress(SystemExit):  # no_sync exits after its row
            execute(ladder.get(name), flags, Run, passes=lambda error: False)
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**100)
    monkeypatch.setattr("torch.amp.GradScaler", scaler)
    execute(ladder.get("untied_weights"), flags, Run)
    rows = rows_file.read(path)

    assert dict(rows.groupby("technique", observed=True).note.first()) == {
        "fused_optimizer": "in float16",
        "float16_fused_optimizer": "",
        "no_sync": "needs bfloat16: its diff has no place in float16",
        "untied_weights": "in float16; 3 of 3 updates skipped: gradients overflowed",
    }
    losses = {name: list(part.loss) for name, part in rows.groupby("technique", observed=True)}
    assert losses["fused_optimizer"] == losses["float16_fused_optimizer"]
    assert study.choose(rows, path).ladder.replaced == ladder.FLOAT16
