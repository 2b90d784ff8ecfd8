"""Replacements of CUDA kernels without a counterpart on a CPU.

These are fused attention, and softmax with 16-bit inputs and float32 results. They consist of
operators that `operators.cpp` runs on the CPU.
"""

import torch

aten = torch.ops.aten


def install():
    """Register the replacements, and return the library, which must be kept alive."""
    library = torch.library.Library("aten", "IMPL")
    replacements = {}

    for kind, forward, backward in (
        ("flash", _flash, _flash_backward),
        ("efficient", _efficient, _efficient_backward),
        ("cudnn", _cudnn, _cudnn_backward),
    ):
        name = f"_scaled_dot_product_{kind}_attention"
        replacements[name] = forward
        replacements[f"{name}_backward"] = backward

    for name in ("_softmax", "_log_softmax"):
        backward_name = f"{name}_backward_data"
        replacements[name] = _widening(getattr(aten, name))
        replacements[backward_name] = _narrowing(getattr(aten, backward_name))

    for name, replacement in replacements.items():
        library.impl(name, replacement, "CUDA", allow_override=True)
    return library


# Attention, with arguments and results as in torch's native_functions.yaml ------------------------


def _scores(q, k, bias, causal, scale):
    scores = (q.float() @ k.float().transpose(-2, -1)) * (scale or q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


def _laid_out(x, like):
    """Return a (B, H, T, D) tensor that lies in memory as (B, T, H, D), as kernels leave it."""
    return x.to(like.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _attend(q, k, v, causal, scale=None, bias=None):
    scores = _scores(q, k, bias, causal, scale)
    return _laid_out(scores.softmax(-1) @ v.float(), q), scores.logsumexp(-1).contiguous()


def _grads(gradient, q, k, v, causal, scale=None, bias=None):
    """Return the gradients of queries, keys and values."""
    weights = _scores(q, k, bias, causal, scale).softmax(-1)
    gradient = gradient.float()

    d_weights = gradient @ v.float().transpose(-2, -1)
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True))
    d_scores = d_scores * (scale or q.shape[-1] ** -0.5)
    return (
        _laid_out(d_scores @ k.float(), q),
        _laid_out(d_scores.transpose(-2, -1) @ q.float(), k),
        _laid_out(weights.transpose(-2, -1) @ gradient, v),
    )


def _number(q, *shape, dtype=torch.long):
    return torch.empty(shape, dtype=dtype, device=q.device)


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, lse = _attend(q, k, v, is_causal, scale)
    seed = _number(q, 2, dtype=torch.uint64)
    unused = _number(q, dtype=torch.uint64)
    mask = _number(q, 0, dtype=q.dtype)
    return out, lse, None, None, q.shape[2], k.shape[2], seed, unused, mask


def _flash_backward(g, q, k, v, out, lse, *arguments, **more):
    return _grads(g, q, k, v, arguments[5], **more)


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


def _cudnn_backward(g, q, k, v, *arguments, **more):
    return _grads(g, q, k, v, arguments[-1], **more)


# Softmax with 16-bit inputs and float32 results, which takes two operators on a CPU ---------------


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
