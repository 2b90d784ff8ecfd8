"""Cross-entropy in one Triton kernel that writes the gradient over the logits.

The logits are the largest tensor of a step. Each Triton program takes one row: it reads the row for
the maximum and the sum of the softmax, reads it again, and overwrites it with the gradient, softmax
minus 1 at the target. Arithmetic is float32, in registers. As few rows are in flight as the L2
cache holds, so the second read comes from there. The backward pass only multiplies by a factor.

Parent: padded_vocabulary
Needs:  tf32, bfloat16, compile, triton; in float16 its gradients underflow before they are scaled
Gains:  memory, time: one tensor of the logits' size, and reading it in the backward pass
Costs:  the logits are overwritten
See:    Hsu et al. 2024, Liger Kernel; Milakov and Gimelshein 2018, Online normalizer calculation
"""

from types import SimpleNamespace

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:  # --help does without, and main says that it is missing
    triton = tl = SimpleNamespace(jit=lambda kernel: kernel, constexpr=None)


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@triton.jit
def cross_entropy_kernel(
    logits, targets, losses, scale, V: tl.constexpr, columns: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a row: its loss, and (softmax - one_hot(target)) * scale over its logits.

    The softmax is over the first V columns; the others, padding, get a gradient of 0.
    """
    row = tl.program_id(0).to(tl.int64)  # B * T * columns can exceed 2^31
    logits += row * columns
    target = tl.load(targets + row)
    peak = -3.4e38  # not -inf: for a block of nothing else, -inf - -inf is NaN
    total = 0.0
    logit = 0.0
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        # Of an odd number of columns, as V is one, each would have to be loaded by itself.
        x = tl.load(logits + column, mask=column < columns).to(tl.float32)
        x = tl.where(column < V, x, float("-inf"))
        higher = tl.maximum(peak, tl.max(x, axis=0))
        # exp(peak - higher) moves the sum so far from the old peak to the new one.
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher), axis=0)
        peak = higher
        # Picked out here: a load of its own could come after another thread's write.
        logit += tl.sum(tl.where(column == target, x, 0.0), axis=0)
    tl.store(losses + row, tl.log(total) + (peak - logit))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + column, mask=column < columns).to(tl.float32)
        x = tl.where(column < V, x, float("-inf"))
        gradient = tl.exp(x - peak) / total - tl.where(column == target, 1.0, 0.0)
        tl.store(logits + column, gradient * scale, mask=column < columns)


@triton.jit
def scale_kernel(gradient, factor, columns: tl.constexpr, BLOCK: tl.constexpr):
    """gradient *= factor, which is read here: on the host it would have to be waited for."""
    scale = tl.load(factor)
    if scale != 1:  # loss.backward() hands in 1, and the gradient is not even read
        gradient += tl.program_id(0).to(tl.int64) * columns
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(gradient + column, mask=column < columns).to(tl.float32)
            tl.store(gradient + column, x * scale, mask=column < columns)


class FusedCrossEntropy(torch.autograd.Function):
    """The mean over all rows. Backward scales in place: run again, it raises."""

    @staticmethod
    def launch(logits):
        """Return fewer, larger programs where the rows of many would overflow the L2 cache."""
        if logits.is_cuda:
            gpu = torch.cuda.get_device_properties(logits.device)
            rows = 5 * gpu.multi_processor_count  # that small programs have in flight
            if rows * logits[0].nbytes > gpu.L2_cache_size:
                return {"BLOCK": 16_384, "num_warps": 32}
        return {"BLOCK": 4096, "num_warps": 8}

    @staticmethod
    def forward(ctx, logits, targets, V):  # (N, columns), (N,); V <= columns
        assert logits.is_contiguous() and targets.is_contiguous()
        N, columns = logits.shape
        losses = torch.empty(N, dtype=torch.float32, device=logits.device)
        settings = FusedCrossEntropy.launch(logits)
        cross_entropy_kernel[(N,)](logits, targets, losses, 1 / N, V, columns, **settings)
        torch.autograd.graph.increment_version(logits)  # autograd does not see Triton's writes
        ctx.save_for_backward(logits)
        return losses.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, factor):
        (gradient,) = ctx.saved_tensors
        N, columns = gradient.shape
        scale_kernel[(N,)](gradient, factor, columns, BLOCK=4096, num_warps=8)
        torch.autograd.graph.increment_version(gradient)  # a second backward would scale it twice
        return gradient, None, None


@torch.compiler.disable  # a compiled backward copies what it is handed before it writes to it
def cross_entropy(logits, targets):  # (B * T, 50_304), (B * T,)
    return FusedCrossEntropy.apply(logits, targets, 50_257)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_304,
        loss=cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                loss = model(idx, targets)[1]  # [0] no longer holds the logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
