"""The compiler decides which activations to recompute, within a budget of memory.

Inductor's partitioner splits forward from backward, and anything between may be kept or computed
again. By default it keeps what is not cheap to recompute. With a budget of 0.5 half the bytes stay:
it solves a knapsack problem, so that recomputing the other half takes the fewest operations.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  memory: about half of the activations
Costs:  time: recomputing what was dropped, by the compiler's estimate the cheapest
See:    PyTorch's blog 2025, Current and New Activation Checkpointing Techniques in PyTorch
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
    half = torch._functorch.config.patch(activation_memory_budget=0.5)  # of the default's bytes
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with half, Run(args, model, optimizer) as run:
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
