"""Activations discarded in the forward pass and recomputed block by block in the backward.

The backward pass needs the inputs or outputs of most operations, so they are kept. Here a block
keeps only its own input; when the backward pass reaches the block, its forward pass runs again. The
compiler puts this second forward pass into the backward graph, where it is fused like the rest.
Activations then take one tensor per block instead of a dozen.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  memory: most of the blocks' activations, more with more tokens per step
Costs:  time: a second forward pass of the blocks, up to a third of a step's arithmetic
See:    Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost
"""

import torch
from torch.utils.checkpoint import checkpoint

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def recompute(block):
    forward = block.forward
    block.forward = lambda x: checkpoint(forward, x, use_reentrant=False)


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
    for block in model.h:
        recompute(block)
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
