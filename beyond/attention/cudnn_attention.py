"""cuDNN's attention kernel in place of FlashAttention-2.

The kernel that torch calls flash is FlashAttention-2, written for compute capability 8.0. Hopper
brought two things that it does not use: a unit that copies whole tiles (TMA), and products that
read tiles from shared memory and that warps wait for later (wgmma). cuDNN picks or generates a
kernel for the shape and the GPU. The computation is the same, tile by tile.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, cudnn_attention
Gains:  time: in attention, more for longer sequences, unless the parent runs it already: torch
        may select it by itself on such GPUs, which make profile shows
Costs:  another order of summation; a backward pass that is not deterministic
See:    Shah et al. 2024, FlashAttention-3, on what Hopper offers to attention
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def cudnn_attention(q, k, v):  # each (B, n_head, T, head_dim)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):  # no other: it raises where cuDNN cannot
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=cudnn_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
