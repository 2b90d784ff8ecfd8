"""The block compiled once and used twelve times, instead of the model as a whole.

The compiler's time grows with the graph. All blocks have the same code and shapes, so each is
compiled alone: the first takes the time, the others find its kernels in the cache. The loss is
compiled by itself; embedding, last norm and head, a few kernels, run as they are. Nothing is fused
across a block's border.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  time: of the first step alone, which compiles one block instead of all
Costs:  time: a call a block from Python, and no fusion between blocks
See:    PyTorch's recipe on regional compilation; torchtitan compiles each block
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
        loss=torch.compile(torch.nn.functional.cross_entropy),
    ).to(args.device)
    for block in model.h:
        block.compile()
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
