"""Losses computed in chunks, and habits that cost time: the parent's losses, at another price."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tools.calibration import chunks_of_the_loss, watched
from Utils.base.errors import Unsupported
from Utils.base.gpt2_sizes import CONFIGS

V = 50_257
TOKENS = 192  # logits are then larger than the gradient of their weights
SHAPE = ["--batch-size=4", "--seq-len=48"]
ONE_LAYER = replace(CONFIGS["gpt2-tiny"], n_layer=1)


@pytest.fixture(autouse=True)
def two_steps(monkeypatch):
    monkeypatch.setattr(watched, "STEPS", 2)


@pytest.fixture
def in_inductor():
    """Graphs compiled by a test are no graphs of the next one."""
    yield
    torch.compiler.reset()


def largest_allocation(train, name, **options):
    """Return the bytes of the largest tensor that a script allocates in its steps."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        train(name, *SHAPE, config=ONE_LAYER, **options)
    return max(event.nbytes() for event in profiled.profiler.kineto_results.events())


def test_chunked_no_tensor_has_the_size_of_the_logits(train, in_inductor):
    logits = TOKENS * V * 2  # in bfloat16
    assert largest_allocation(train, "fused_optimizer") >= logits
    assert largest_allocation(train, "linear_cross_entropy") < logits
    for _ in range(2):  # compiled, then from the cache
        torch.compiler.reset()
        assert largest_allocation(train, "chunked_loss", compile=None) < logits


def test_chunked_gradients_are_the_parents(train, in_inductor, monkeypatch):
    """And so are the losses, as far as the type in which they are added up goes."""
    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", lambda *args, **options: None)
    parent = train("fused_optimizer", *SHAPE)
    gradients = {name: p.grad for name, p in parent.model.named_parameters()}
    by_torch = {"compile": None}
    cases = ("chunked_loss", by_torch, 1e-4), ("linear_cross_entropy", {}, 2**-4)
    for name, options, rounding in cases:
        child = train(name, *SHAPE, **options)
        assert child.losses == pytest.approx(parent.losses, abs=rounding)
        for parameter, chunked in child.model.named_parameters():
            expected = gradients[parameter.removeprefix("_orig_mod.")]
            error = (chunked.grad - expected).norm() / expected.norm()
            assert error < 0.02, (name, parameter)  # of bfloat16's eight bits


def test_more_chunks_lose_more_of_a_loss_in_bfloat16_and_autocast_does_not_reach_it(monkeypatch):
    monkeypatch.setattr(chunks_of_the_loss, "CHUNKS", (1, 128))
    flags = ["--tokens=512", "--vocabulary=500", "--dataset=synthetic"]
    autocast, one, many = chunks_of_the_loss.main(flags).itertuples()
    assert autocast.loss == autocast.exact_loss and float(autocast.gradient_error) == 0
    lost = [abs(float(row.loss) - float(row.exact_loss)) for row in (one, many)]
    assert lost[0] < 2**-6 < lost[1]
    assert 0 < float(one.gradient_error) < float(many.gradient_error) / 2


def test_too_few_tokens_for_chunks_are_refused_though_inductor_is_silent(train, in_inductor):
    with pytest.raises(Unsupported, match="more tokens than channels$"):
        few = ["--batch-size=4", "--seq-len=8"]
        train("chunked_loss", *few, config=ONE_LAYER, compile=None)


def test_an_explicit_mask_and_a_loop_change_no_loss(train):
    parent = train("flash_attention")
    assert train("explicit_mask").losses == pytest.approx(parent.losses, rel=1e-4)
    child = train("for_loop_optimizer")
    assert child.losses == parent.losses and child.optimizer.defaults["foreach"] is False
    assert "what AdamW is on a CPU anyway" in child.args.notes[-1]
