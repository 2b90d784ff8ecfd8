"""Padding the vocabulary changes shapes and nothing else."""

import contextlib

import pytest
import torch

import fused_optimizer
from beyond.loss import padded_vocabulary
from tests import watched
from tests.watched import STEPS


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Parent and child after a few steps of their own main, in float32: what tells them apart is
    then no rounding to bfloat16."""
    folder, flags = tmp_path_factory.mktemp("padded"), ("--batch-size=2", "--seq-len=32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
        return [
            watched.train(script, watched.settle(script, folder, *flags))
            for script in (fused_optimizer, padded_vocabulary)
        ]


def test_the_weights_start_as_the_parents_do(trained):
    parent, child = (watch.first for watch in trained)
    assert parent.keys() == child.keys()
    for name, weight in child.items():
        assert torch.equal(weight[: len(parent[name])], parent[name]), name
    assert len(parent["wte.weight"]) == 50_257 and len(child["wte.weight"]) == 50_304


def test_the_losses_are_the_parents(trained):
    parent, child = (watch.losses for watch in trained)
    assert len(parent) == STEPS and parent[0] != parent[-1]
    assert child == pytest.approx(parent, rel=1e-5)
    assert child[0] == pytest.approx(parent[0], rel=1e-6)


def test_padded_rows_get_no_gradient_and_the_others_do(trained):
    _, child = trained
    seen, own = [], child.model.loss
    child.model.loss = lambda logits, targets: own(seen.append(logits) or logits, targets)
    _, loss = child.model(*child.batch)
    (logits,) = seen
    logits.retain_grad()
    loss.backward()
    gradient = child.model.wte.weight.grad
    assert gradient[:50_257].any(dim=1).all() and not gradient[50_257:].any()
    assert not logits.grad[..., 50_257:].any()


def test_what_stands_in_a_padded_column_does_not_reach_the_loss():
    logits, targets = torch.randn(4, 50_304), torch.tensor([0, 1, 50_255, 50_256])
    logits[:, 50_257:] = 100
    sliced, masked = (logits.clone().requires_grad_() for _ in range(2))
    expected = torch.nn.functional.cross_entropy(sliced[:, :50_257], targets)
    expected.backward()
    loss = padded_vocabulary.cross_entropy(masked, targets)
    loss.backward()
    assert loss == expected and torch.equal(masked.grad, sliced.grad)
