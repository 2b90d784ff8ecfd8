"""Techniques of fewer bits and of other updates: which numbers are rounded, and which move."""

import re
from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import _registry

from beyond.attention import flash_attention_4, flex_attention
from beyond.loss import padded_vocabulary
from beyond.precision import bfloat16_residual
from Utils.device.capabilities import CHECKS
from Utils.harness import memory_kinds

NORM = re.compile(r"ln_\w+\.weight")  # 1.0 at the start


@pytest.fixture
def everywhere(monkeypatch):
    """Function of needs, which every device then meets."""
    return lambda *needs: [monkeypatch.setitem(CHECKS, need, lambda device: "") for need in needs]


def moved(watch):
    """Return whether each LayerNorm's weights have moved from where they started, as a set."""
    now = dict(watch.model.named_parameters())
    norms = [name for name in watch.first if NORM.search(name)]
    return {not torch.equal(now[name], watch.first[name]) for name in norms}


def test_master_weights_move_though_a_step_is_below_half_a_unit(train):
    """The float32 copies move at once; the weights, 0.004 apart near 1.0, not yet."""
    parent, child = train("pure_bfloat16"), train("master_weights")
    assert {p.dtype for p in child.model.parameters()} == {torch.bfloat16}
    assert memory_kinds.updated(child.model, child.optimizer) == list(range(len(child.first)))
    masters = child.optimizer.param_groups[0]["params"]
    assert {(master.dtype, master.grad) for master in masters} == {(torch.float32, None)}
    for master, p in zip(masters, child.model.parameters(), strict=True):
        assert torch.equal(master.bfloat16(), p)
    named = zip(child.first, masters, strict=True)
    norms = [master for name, master in named if NORM.search(name)]
    assert all((norm != 1).any() for norm in norms) and moved(parent) == {False}
    assert child.losses == pytest.approx(parent.losses, rel=2**-9)


def test_stochastic_rounding_moves_some_weights_by_a_whole_unit(train):
    pytest.importorskip("torchao")
    with torch.compiler.set_stance("force_eager"):
        child = train("stochastic_rounding")
    assert True in moved(child) and moved(train("pure_bfloat16")) == {False}
    assert {p.dtype for p in child.model.parameters()} == {torch.bfloat16}
    norm = child.model.ln_f.weight
    assert set(norm.float().tolist()) <= {1.0, 1 - 2**-8, 1 + 2**-7}


def test_the_residual_stream_is_in_bfloat16(train, everywhere, monkeypatch):
    everywhere("triton")
    monkeypatch.setattr(bfloat16_residual, "cross_entropy", padded_vocabulary.cross_entropy)
    parent, child = train("padded_vocabulary"), train("bfloat16_residual")
    assert child.losses == pytest.approx(parent.losses, rel=2**-9) and child.losses != parent.losses
    for watch, dtype in ((parent, torch.float32), (child, torch.bfloat16)):
        ends = []
        watch.model.ln_f.register_forward_pre_hook(lambda norm, x, ends=ends: ends.append(x[0]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            watch.model(*watch.batch)
        assert ends[0].dtype == dtype


def test_products_in_float8_are_the_heads_alone_or_all_others(train, everywhere):
    float8 = pytest.importorskip("torchao.float8")
    everywhere("float8")
    emulate = partial(
        float8.convert_to_float8_training, config=float8.Float8LinearConfig(emulate=True)
    )
    layers = {}
    for name in ("float8_head", "float8_linear"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(float8, "convert_to_float8_training", emulate)
            child = train(name)
        for layer, module in child.model.named_modules():
            layers.setdefault((name, type(module).__name__), []).append(layer)
        assert child.model.lm_head.weight is child.model.wte.weight
        assert child.losses == pytest.approx(train("padded_vocabulary").losses, rel=2**-8)
    assert layers["float8_head", "Float8Linear"] == layers["float8_linear", "Linear"] == ["lm_head"]
    assert layers["float8_linear", "Float8Linear"] == layers["float8_head", "Linear"]


def test_the_blocks_products_are_of_integers(train):
    pytest.importorskip("torchao")
    parent, child = train("fused_optimizer"), train("int8_linear")
    integers = [m for m in child.model.modules() if type(m).__name__.startswith("Int8")]
    assert len(integers) == 4 * len(child.model.h)
    x = torch.randn(8, 64)
    y = integers[0](x)
    exact = torch.nn.functional.linear(x, integers[0].weight, integers[0].bias)
    assert 0.001 < (y - exact).norm() / exact.norm() < 0.02  # 127 levels
    assert child.losses != parent.losses
    assert child.losses == pytest.approx(parent.losses, rel=2**-8)


def test_muon_takes_the_blocks_matrices_and_adamw_the_others(train):
    child = train("muon")
    muon, adamw = child.optimizer
    matrices = {p for group in muon.param_groups for p in group["params"]}
    assert {p.ndim for p in matrices} == {2} and len(matrices) == 4 * len(child.model.h)
    assert not matrices & {p for group in adamw.param_groups for p in group["params"]}
    assert all(not torch.equal(p, child.first[name]) for name, p in child.model.named_parameters())


def test_gradients_are_clipped_before_the_step(train, monkeypatch):
    norms = []
    clip = torch.nn.utils.clip_grad_norm_

    def watch(parameters, limit):
        parameters = list(parameters)
        norms.append(float(clip(parameters, limit)))
        after = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        assert after == pytest.approx(min(norms[-1], limit), rel=1e-3)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watch)
    train("gradient_clipping")
    assert norms and max(norms) > 1


def test_moments_in_bfloat16_are_there_before_the_first_step(train, everywhere, monkeypatch):
    """On a GPU one kernel rounds them; here AdamW in float32 does, and rounds after each step."""
    everywhere("mixed_moments")
    step = torch.optim.AdamW.step

    def rounded(optimizer):
        moments = [s for s in optimizer.state.values() if "exp_avg" in s]
        for state in moments:
            assert state["exp_avg"].dtype is state["exp_avg_sq"].dtype is torch.bfloat16
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].float()
        step(optimizer)
        for state in moments:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].bfloat16()

    parent = train("fused_optimizer")
    monkeypatch.setattr(torch.optim.AdamW, "step", rounded)
    child = train("bfloat16_moments")
    assert len(child.optimizer.state) == len(list(child.model.parameters()))
    assert child.losses == pytest.approx(parent.losses, rel=2**-9) and child.losses != parent.losses


@pytest.mark.slow
def test_half_the_budget_keeps_fewer_activations(train, monkeypatch):
    """In float32, which any CPU computes quickly."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    compile = partial(torch.compile, backend="aot_eager_decomp_partition")
    kept = Counter()
    for name in ("fused_optimizer", "activation_budget"):

        def pack(x, name=name):
            if x.numel() < 50_257 * 64:  # no weights
                kept[name] += x.nbytes
            return x

        torch.compiler.reset()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            train(name, "--batch-size=4", "--seq-len=64", compile=compile)
    assert kept["activation_budget"] < 0.8 * kept["fused_optimizer"]


def test_switches_reach_the_compiler(train):
    options = {}
    train("inductor_tuning", compile=lambda model, **given: options.update(given) or model)
    assert options == {"options": {"coordinate_descent_tuning": True}}
    compiled = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "compile", lambda block: compiled.append(block))
        model = train("regional_compilation", compile=lambda f: compiled.append(f) or f).model
    assert compiled == [torch.nn.functional.cross_entropy, *model.h]


def test_flash_attention_4_is_called_under_the_name_of_torchs_own(train, everywhere, monkeypatch):
    everywhere("flash_attention_4")
    replaces_nothing = SimpleNamespace(remove=lambda: None)
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA4", lambda: replaces_nothing)
    backends = []
    choose = flash_attention_4.sdpa_kernel
    monkeypatch.setattr(
        flash_attention_4,
        "sdpa_kernel",
        lambda backend: backends.append(backend.name) or choose(backend),
    )
    child = train("flash_attention_4")
    assert torch.nn.attention.current_flash_attention_impl() == "FA4"
    torch.nn.attention.restore_flash_attention_impl()
    assert child.losses == train("fused_optimizer").losses
    assert set(backends) == {"FLASH_ATTENTION"}


def test_flex_attentions_mask_is_the_causal_one():
    from torch.nn.attention.flex_attention import create_mask

    mask = create_mask(flex_attention.causal, 1, 1, 8, 8, device="cpu")
    assert torch.equal(mask[0, 0], torch.ones(8, 8, dtype=torch.bool).tril())
