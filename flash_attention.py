"""FlashAttention: softmax(QK^T)V tile by tile, without writing the T x T scores to memory.

Explicit attention writes B x n_head x T x T scores to memory, reads them back for the mask, the
softmax and the product with V, and keeps them for the backward pass. FlashAttention holds one tile
at a time on the chip, updates a running softmax tile by tile, and recomputes scores in the backward
pass. This is more arithmetic, far less traffic, and memory linear in T. With is_causal it skips the
tiles above the diagonal.

Parent: torch_compile
Needs:  tf32, bfloat16, compile; torch selects the first of its attention kernels that can run
Gains:  time, memory: more for longer sequences
Costs:  another order of summation, so different rounding
See:    Dao et al. 2022, FlashAttention (NeurIPS)
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)

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
