"""Activations thrown away in the forward pass, and computed again, block by block, in the backward.

The backward pass needs what each operation read, so all of it is kept, from the first block to the
last. Here a block keeps its input alone; when the backward pass comes to it, its forward runs once
more. The compiler sees the mark and puts the second forward into the backward graph, where it is
fused like the rest. Memory for activations then grows by one tensor a block in place of a dozen.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  memory: most of the blocks' activations, so the more, the more tokens a step
Costs:  time: the blocks' forward once more, up to a third of a step's arithmetic
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
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

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
