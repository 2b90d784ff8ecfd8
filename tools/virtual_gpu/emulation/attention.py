"""Replacements of CUDA kernels without a counterpart on a CPU.

These are fused attention, and softmax that widens its input. They are written with other operators,
which `operators.cpp` runs on the CPU.
"""

import torch

aten = torch.ops.aten


def install():
    """Registers them. Returns the library, which lives as long as they are wanted."""
    library = torch.library.Library("aten", "IMPL")
    for kind, forward, backward in (
        (
            "flash",
            _flash,
            lambda g, q, k, v, out, lse, *rest, **more: _grads(g, q, k, v, rest[5], **more),
        ),
        ("efficient", _efficient, _efficient_backward),
        ("cudnn", _cudnn, lambda g, q, k, v, *rest, **more: _grads(g, q, k, v, rest[-1], **more)),
    ):
        name = f"_scaled_dot_product_{kind}_attention"
        library.impl(name, forward, "CUDA", allow_override=True)
        library.impl(f"{name}_backward", backward, "CUDA", allow_override=True)
    for name in ("_softmax", "_log_softmax"):
        library.impl(name, _widening(getattr(aten, name)), "CUDA", allow_override=True)
        own = f"{name}_backward_data"
        library.impl(own, _narrowing(getattr(aten, own)), "CUDA", allow_override=True)
    return library


# Attention: each kernel's arguments and results are those of torch's native_functions.yaml --------


def _scores(q, k, bias, causal, scale):
    scores = (q.float() @ k.float().transpose(-2, -1)) * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


def _laid_out(x, like):  # (B, H, T, D) in memory as (B, T, H, D), as the kernels leave it
    return x.to(like.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _attend(q, k, v, causal, scale=None, bias=None):
    scores = _scores(q, k, bias, causal, scale)
    return _laid_out(scores.softmax(-1) @ v.float(), q), scores.logsumexp(-1).contiguous()


def _grads(gradient, q, k, v, causal, scale=None, bias=None):
    weights, gradient = _scores(q, k, bias, causal, scale).softmax(-1), gradient.float()
    of_weights = gradient @ v.float().transpose(-2, -1)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_scores = of_scores * (scale or q.shape[-1] ** -0.5)
    return (
        _laid_out(of_scores @ k.float(), q),
        _laid_out(of_scores.transpose(-2, -1) @ q.float(), k),
        _laid_out(weights.transpose(-2, -1) @ gradient, v),
    )


def _number(q, *shape, dtype=torch.long):
    return torch.empty(shape, dtype=dtype, device=q.device)


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, lse = _attend(q, k, v, is_causal, scale)
    seed, unused = _number(q, 2, dtype=torch.uint64), _number(q, dtype=torch.uint64)
    return out, lse, None, None, q.shape[2], k.shape[2], seed, unused, _number(q, 0, dtype=q.dtype)


def _efficient(q, k, v, attn_bias, with_lse, dropout_p=0.0, is_causal=False, *, scale=None):
    out, lse = _attend(q, k, v, is_causal, scale, attn_bias)
    return out, lse if with_lse else lse.new_empty(0), _number(q), _number(q)


def _efficient_backward(
    g, q, k, v, bias, out, lse, seed, offset, dropout_p, mask, is_causal=False, *, scale=None
):
    return *_grads(g, q, k, v, is_causal, scale, bias), None


def _cudnn(
    q,
    k,
    v,
    attn_bias,
    with_lse,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    *,
    scale=None,
):
    out, lse = _attend(q, k, v, is_causal, scale, attn_bias)
    return out, lse.unsqueeze(-1), None, None, q.shape[2], k.shape[2], _number(q), _number(q), None


# Softmax in 16 bits with a result in 32, which a CPU does in two operators ------------------------


def _widening(softmax):
    def forward(x, dim, half_to_float):
        x = x.cpu()
        return softmax(x.float() if half_to_float else x, dim, False).to("cuda")

    return forward


def _narrowing(softmax_backward):
    def backward(gradient, output, dim, input_dtype):
        on_cpu = softmax_backward(gradient.cpu(), output.cpu(), dim, output.dtype)
        return on_cpu.to(gradient.device, input_dtype)

    return backward
