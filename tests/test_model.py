"""The skeleton that every script trains against Hugging Face's GPT-2."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from no_optimization import explicit_attention
from Utils.base.gpt2_sizes import CONFIGS
from Utils.model import GPT

VOCAB = 50_257


def build(name="gpt2-tiny"):
    torch.manual_seed(0)
    return GPT(CONFIGS[name], explicit_attention, VOCAB, loss=F.cross_entropy)


def names_of_ours(state):
    """Hugging Face's names and layout -> ours: its Conv1D keeps a weight as (in, out)."""
    conv1d = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {
        name.removeprefix("transformer."): tensor.T if name.endswith(conv1d) else tensor
        for name, tensor in state
    }


def random_tokens(B, T):
    return torch.randint(VOCAB, (B, T), generator=torch.Generator().manual_seed(2))


def test_model_equals_hugging_faces_with_the_same_weights():
    """DESIGN: "its logits equal those of Hugging Face's `GPT2LMHeadModel` with the same weights".

    Of two layers, no parameter of which is left at 0 or 1.
    """
    import transformers  # here: seconds, in every process that collects tests

    sizes = {name: getattr(CONFIGS["gpt2-tiny"], name) for name in ("n_layer", "n_head", "n_embd")}
    theirs = transformers.GPT2Config(attn_implementation="eager", **sizes)
    reference = transformers.GPT2LMHeadModel(theirs).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model = build()
    model.load_state_dict(names_of_ours(reference.state_dict().items()), strict=True)

    tokens = random_tokens(2, 65)
    targets = tokens[:, 1:].contiguous()
    logits, loss = model(tokens[:, :-1], targets)
    expected = reference(tokens[:, :-1]).logits
    expected_loss = F.cross_entropy(expected.view(-1, VOCAB), targets.view(-1))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=0)
    loss.backward()
    expected_loss.backward()
    gradients = names_of_ours((name, p.grad) for name, p in reference.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-5)


def test_model_weights_start_as_those_of_gpt2():
    """Matrices normal with its deviations, biases at zero, LayerNorms at one."""
    for name, weight in build("gpt2").named_parameters():
        if weight.dim() == 1:
            norm = "ln_" in name and name.endswith("weight")
            assert weight.eq(1 if norm else 0).all(), name
            continue
        std = 0.01 if "wpe" in name else 0.02
        if "c_proj" in name:
            std = 0.02 / (2 * 12) ** 0.5
        assert weight.std().item() == pytest.approx(std, rel=0.01), name


def test_model_compiled_backward_takes_the_gradient_of_the_loss_and_no_other():
    """FINDINGS: "Return `logits.detach()`, and the cost is gone"."""
    inputs = []

    def backward(graph, example_inputs):
        inputs.extend(node.name for node in graph.graph.nodes if node.op == "placeholder")
        return make_boxed_func(graph)

    forward = lambda graph, _: make_boxed_func(graph)  # noqa: E731
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    logits, loss = torch.compile(build(), backend=backend)(random_tokens(2, 8), random_tokens(2, 8))
    loss.backward()
    assert [name for name in inputs if name.startswith("tangents")] == ["tangents_1"]
    assert not logits.requires_grad
