import pytest
import torch
import torch.nn.functional as F

from no_optimization import explicit_attention
from Utils.base.gpt2_sizes import CONFIGS
from Utils.model import GPT

VOCAB = 50_257


def build(name, vocab_size=VOCAB, device="cpu"):
    torch.manual_seed(0)
    with torch.device(device):
        return GPT(CONFIGS[name], explicit_attention, vocab_size, loss=F.cross_entropy)


@pytest.fixture(scope="module")
def fresh():
    """GPT-2 124M as it is initialized; for reading only."""
    return build("gpt2")


@pytest.fixture(scope="module")
def reference():
    """Hugging Face's GPT-2, no parameter of which is left at 0 or 1."""
    import transformers  # here: seconds, in every process that collects tests

    torch.manual_seed(1)
    config = transformers.GPT2Config(attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def own_names(state):
    """Hugging Face's names and layout -> ours: its Conv1D keeps a weight as (in, out)."""
    conv1d = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {
        name.removeprefix("transformer."): tensor.T if name.endswith(conv1d) else tensor
        for name, tensor in state
    }


def random_tokens(B, T):
    return torch.randint(VOCAB, (B, T), generator=torch.Generator().manual_seed(2))


@pytest.mark.slow
def test_logits_and_loss_equal_hugging_faces_with_the_same_weights(reference):
    model = build("gpt2")
    model.load_state_dict(own_names(reference.state_dict().items()), strict=True)
    tokens = random_tokens(2, 65)
    with torch.no_grad():
        logits, loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
        expected = reference(tokens, labels=tokens)
    assert expected.logits.std() > 0.3  # no two models agree by being flat
    torch.testing.assert_close(logits, expected.logits[:, :-1], rtol=0, atol=1e-4)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=0)


def test_parameters_bear_hugging_faces_names_and_shapes_in_its_order(fresh, reference):
    ours = [(name, tuple(p.shape)) for name, p in fresh.named_parameters()]
    theirs = own_names(reference.named_parameters()).items()
    assert ours == [(name, tuple(p.shape)) for name, p in theirs]


@pytest.mark.parametrize("vocab_size", [VOCAB, 50_304])
@pytest.mark.parametrize("name", CONFIGS)
def test_config_knows_the_number_of_parameters(name, vocab_size):
    built = sum(p.numel() for p in build(name, vocab_size, "meta").parameters())
    assert CONFIGS[name].parameters(vocab_size) == built
    assert CONFIGS["gpt2"].parameters() == 124_439_808


def test_weights_start_as_gpt2s(fresh):
    """Matrices normal with its deviations, biases at zero, LayerNorms at one."""
    residual = 0.02 / (2 * 12) ** 0.5
    for name, weight in fresh.named_parameters():
        if weight.dim() == 1:
            norm = "ln_" in name and name.endswith("weight")
            assert weight.eq(1 if norm else 0).all(), name
            continue
        std = 0.01 if "wpe" in name else residual if "c_proj" in name else 0.02
        assert weight.std().item() == pytest.approx(std, rel=0.01), name
        assert abs(weight.mean().item()) < 0.01 * std, name
        within = (weight.abs() < std).float().mean().item()
        assert within == pytest.approx(0.683, abs=0.01), name


def test_a_later_token_leaves_earlier_logits_as_they_are():
    model, idx = build("gpt2-tiny"), random_tokens(2, 32)
    changed = idx.clone()
    changed[:, 20] += 1
    changed %= VOCAB
    before, after = (model(tokens, tokens)[0] for tokens in (idx, changed))
    torch.testing.assert_close(after[:, :20], before[:, :20], rtol=0, atol=1e-6)
    later = (after - before)[:, 20:].abs().amax(-1)  # (B, 12)
    assert (later > 1e-4).all()


def test_the_attention_and_the_loss_handed_in_are_used():
    calls = []

    def blind(q, k, v):
        calls.append(q.shape)
        return v

    def third_logit(logits, targets):
        assert logits.shape == (15, 100) and targets.shape == (15,)
        return logits[targets == 7, 3].sum()

    model = GPT(CONFIGS["gpt2-tiny"], attention=blind, vocab_size=100, loss=third_logit)
    idx = torch.arange(15).view(3, 5)
    logits, loss = model(idx, idx)
    assert calls == [(3, 2, 5, 32)] * 2
    assert logits.shape == (3, 5, 100) and loss == logits[1, 2, 3]


def test_every_parameter_learns_at_full_context():
    model, idx = build("gpt2-tiny"), random_tokens(1, 1024)
    model(idx, idx.roll(-1))[1].backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


def test_a_compiled_backward_takes_the_gradient_of_the_loss_and_no_other():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    inputs = []

    def backward(graph, example_inputs):
        inputs.extend(node.name for node in graph.graph.nodes if node.op == "placeholder")
        return make_boxed_func(graph)

    model = build("gpt2-tiny")
    compiled = torch.compile(
        model,
        backend=aot_autograd(fw_compiler=lambda g, _: make_boxed_func(g), bw_compiler=backward),
    )
    logits, loss = compiled(random_tokens(2, 8), random_tokens(2, 8))
    loss.backward()
    assert [name for name in inputs if name.startswith("tangents")] == ["tangents_1"]
    assert logits.shape == (2, 8, VOCAB) and not logits.requires_grad
