"""The head's products in 8-bit floats, with a gradient that the loss kernel writes as such.

The head is the largest product, and 8-bit floats multiply at twice the rate of bfloat16. Since
softmax - one_hot is within [-1, 1], the loss kernel rounds it to E5M2 at a constant scale: half the
bytes, and no cast. 1/N is a factor of the products. Tensor cores sum 8-bit floats only along rows
of one operand and columns of the other, so the gradient is also copied transposed. Loss and head
stay in one graph.

Parent: all_together
Needs:  tf32, bfloat16, compile, triton, brainFloat16, pinned_memory, float8, ocp_float8
Gains:  time: on an H100 by forecast 541,000 tokens/s (391,000-747,000) at 16x1024 and 600,000
        (434,000-830,000) at 64x1024; all_together has 508,000 and 558,000
Costs:  all but 3 mantissa bits of the head's operands, and 2 of the logits' gradient, in which
        probabilities below 2^-32 are 0; logits and gradient are both in memory, 0.7 GB at 16x1024
        by torch's allocator on a virtual GPU
See:    Micikevicius et al. 2022, FP8 Formats for Deep Learning; modded-nanogpt, record 67
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
    logits, targets, losses, gradients, V: tl.constexpr, columns: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a row: its loss, and (softmax - one_hot(target)) * 2^15 in 8 bits.

    The softmax is over the first V columns; the others, padding, get a gradient of 0.
    """
    row = tl.program_id(0).to(tl.int64)  # B * T * columns can exceed 2^31
    logits += row * columns
    gradients += row * columns
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
        logit += tl.sum(tl.where(column == target, x, 0.0), axis=0)
    tl.store(losses + row, tl.log(total) + (peak - logit))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + column, mask=column < columns).to(tl.float32)
        x = tl.where(column < V, x, float("-inf"))
        gradient = tl.exp(x - peak) / total - tl.where(column == target, 1.0, 0.0)
        # E5M2 ends at 57,344. Its smallest number, 2^-16, stands for a probability of 2^-31.
        gradient = (gradient * 32_768).to(tl.float8e5)
        tl.store(gradients + column, gradient, mask=column < columns)


class Float8CrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of x @ weight.t(), whose three products are of 8-bit floats."""

    @torch.library.custom_op("beyond::cross_entropy_kernel", mutates_args=())
    def launch(
        logits: torch.Tensor, targets: torch.Tensor, V: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the gradient of each row. torch.compile calls this as it is."""
        N, columns = logits.shape
        losses, gradients = Float8CrossEntropy.allocate(logits, targets, V)
        # At most two such programs fit an SM: their rows stay in the L2 cache for the second loop.
        settings = {"BLOCK": 16_384, "num_warps": 32}
        cross_entropy_kernel[(N,)](logits, targets, losses, gradients, V, columns, **settings)
        return losses, gradients

    @launch.register_fake
    def allocate(logits, targets, V):
        losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        return losses, torch.empty_like(logits, dtype=torch.float8_e5m2)

    @staticmethod
    def of(weight, V):
        """Return the loss as a function of x, (N, C), and targets, (N,)."""
        return lambda x, targets: Float8CrossEntropy.apply(weight, x, targets, V)

    @staticmethod
    def forward(ctx, weight, x, targets, V):  # (columns, C), (N, C), (N,); V <= columns
        # What is cast to E4M3 is scaled so that its largest number is 448, the end of the range.
        w_scale, x_scale = weight.abs().amax().float() / 448, x.abs().amax().float() / 448
        w8 = (weight / w_scale).to(torch.float8_e4m3fn)
        x8 = (x / x_scale).to(torch.float8_e4m3fn)
        types = {"out_dtype": torch.bfloat16}
        logits = torch._scaled_mm(x8, w8.t(), x_scale, w_scale, use_fast_accum=True, **types)
        losses, gradients = torch.ops.beyond.cross_entropy_kernel(logits, targets, V)
        ctx.save_for_backward(w8, w_scale, x8, x_scale, gradients)
        return losses.mean()

    @staticmethod
    def backward(ctx, factor):
        w8, w_scale, x8, x_scale, gradients = ctx.saved_tensors
        scale = factor / (len(x8) * 32_768)  # stays on the device
        types = {"out_dtype": torch.bfloat16}
        w8, x8 = w8.t().contiguous().t(), x8.t().contiguous().t()  # with contiguous columns
        x_gradient = torch._scaled_mm(gradients, w8, scale, w_scale, **types)
        w_gradient = torch._scaled_mm(gradients.t().contiguous(), x8, scale, x_scale, **types)
        return w_gradient.float(), x_gradient, None, None


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_304,
        loss=None,  # needs the weight of the head
    ).to(args.device)
    model.lm_head.forward = lambda x: x.bfloat16()  # the loss multiplies by its weight
    model.loss = Float8CrossEntropy.of(model.lm_head.weight, 50_257)
    model.h[0].register_forward_pre_hook(lambda block, inputs: inputs[0].bfloat16())
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            batch = torch.stack((idx, targets)).pin_memory()  # other memory is waited for
            idx, targets = batch.to(args.device, non_blocking=True)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                loss = model(idx, targets)[1]  # [0] no longer holds the logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
