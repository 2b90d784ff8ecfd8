"""Attention in one kernel, without the T x T scores in memory, on GPUs that FlashAttention skips.

FlashAttention 2 needs compute capability 8.0. Below it scaled_dot_product_attention selects the
memory-efficient kernel, written with CUTLASS for tensor cores from 7.0 on. It holds one tile of
queries and walks over keys and values with a running softmax; the backward pass recomputes the
scores. Memory is linear in T. From 8.0 on torch selects FlashAttention here as well.

Parent: float16_compile
Needs:  float16, compile; torch selects the first of its attention kernels that can run
Gains:  time, memory: more for longer sequences
Costs:  another order of summation, so different rounding; slower than FlashAttention where both run
See:    Rabe and Staats 2021, Self-attention Does Not Need O(n^2) Memory
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def fused_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=fused_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)
    scaler = torch.amp.GradScaler(args.device.type)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.float16):
                logits, loss = model(idx, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # waits, unless fused: an overflow's step must not be made
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
