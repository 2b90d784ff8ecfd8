"""Deterministic kernels: the same seed gives the same losses to the last bit.

Floating-point sums depend on their order. Kernels that add from many threads to one address, as in
the gradients of the embedding and of FlashAttention, add in arbitrary order, and run-time
benchmarks may select another kernel in the next run. Here torch uses kernels with a fixed order, or
sorts before it adds, and Inductor selects by rule instead of by benchmark.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile; an operation without such a kernel raises
Gains:  nothing: repeatability, on the same device with the same versions
Costs:  time, in the replaced kernels
See:    PyTorch's documentation, Reproducibility
"""

import os

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # torch reads it at the first product
    torch.use_deterministic_algorithms(True)
    # filling torch.empty costs time and only shows bugs: nothing here reads what was not written
    torch.utils.deterministic.fill_uninitialized_memory = False
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
