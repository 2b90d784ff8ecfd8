"""Several techniques in one script: loss kernel, bfloat16 stream, one graph, no waiting host.

The parent's loss kernel becomes an operator, which torch.compile keeps in the graph of model and
head: a factor of the loss then multiplies their products, and costs nothing. Batches come from
pinned memory, and the loss is read after the run. So the host runs ahead of the device, which
leaves CUDA graphs little to gain. What is left, a few percent by others' figures: GELU and
gradients of biases as epilogues of the products.

Parent: bfloat16_residual
Needs:  tf32, bfloat16, compile, triton, brainFloat16, pinned_memory
Gains:  time, memory: those of its parts; on an H100 by forecast 508,000 tokens/s (369,000-704,000)
        at 16x1024 and 558,000 (404,000-772,000) at 64x1024
Costs:  the logits are overwritten; losses are known only after the run
See:    the scripts whose lines it takes: asynchronous_logging, prefetching_loader
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


class FusedCrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of x @ weight.t(), in one graph with the model."""

    @torch.library.custom_op("beyond::cross_entropy_in_place", mutates_args={"logits"})
    def launch(logits: torch.Tensor, targets: torch.Tensor, V: int) -> torch.Tensor:
        """Overwrite each row with its gradient, and return its loss. torch.compile calls this."""
        N, columns = logits.shape
        losses = FusedCrossEntropy.allocate(logits, targets, V)
        settings = {"BLOCK": 4096, "num_warps": 8}
        if logits.is_cuda:
            gpu = torch.cuda.get_device_properties(logits.device)
            rows = 5 * gpu.multi_processor_count  # that small programs have in flight
            if rows * logits[0].nbytes > gpu.L2_cache_size:  # fewer and larger ones, then
                settings = {"BLOCK": 16_384, "num_warps": 32}
        cross_entropy_kernel[(N,)](logits, targets, losses, 1 / N, V, columns, **settings)
        return losses

    @launch.register_fake
    def allocate(logits, targets, V):
        return torch.empty(len(logits), dtype=torch.float32, device=logits.device)

    @staticmethod
    def of(weight, V):
        """Return the loss as a function of x, (N, C), and targets, (N,)."""
        return lambda x, targets: FusedCrossEntropy.apply(weight, x, targets, V)

    @staticmethod
    def forward(ctx, weight, x, targets, V):  # (columns, C), (N, C), (N,); V <= columns
        weight = weight.to(x.dtype)
        logits = x @ weight.t()
        losses = torch.ops.beyond.cross_entropy_in_place(logits, targets, V)
        ctx.save_for_backward(weight, x, logits)
        return losses.mean()

    @staticmethod
    def backward(ctx, factor):
        weight, x, gradient = ctx.saved_tensors
        # A factor of the products, which are smaller than the gradient, costs nothing.
        return (gradient.t() @ x).float() * factor, gradient @ weight * factor, None, None


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
    model.loss = FusedCrossEntropy.of(model.lm_head.weight, 50_257)
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
