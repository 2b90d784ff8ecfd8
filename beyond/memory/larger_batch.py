"""The largest batch that fits: freed memory is spent on arithmetic.

Each step reads and updates all weights and launches the same kernels, whatever the batch size. More
sequences spread this over more tokens, and larger products use the device better. The batch is
doubled until the parent, in a subprocess for a few steps, runs out of memory. On a CPU, which has
enough memory, it is doubled as long as it pays and the search is shorter than the run.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  time: more tokens per second, until the device is fully used
Costs:  all of the memory; fewer updates from the same tokens, so another learning rate
See:    McCandlish et al. 2018, An Empirical Model of Large-Batch Training
"""

import torch

from beyond.memory import batch_trials
from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    args = batch_trials.with_largest_batch(args, "fused_optimizer", at_most=4096)
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
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
