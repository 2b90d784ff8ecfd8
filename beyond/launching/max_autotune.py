"""The fastest of many generated kernels for each product, found by timing them.

torch.compile calls the library's kernel for a matrix product and picks the tile sizes of its own
kernels by rule. With max-autotune it generates a dozen or more kernels per shape, in Triton on a
GPU and in C++ on a CPU, times them against the library's, and keeps the fastest. A generated kernel
can also apply what follows a product (bias, GELU, a cast) while the tile is still on the chip.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, autotuning
Gains:  time: in matrix products, where a generated kernel beats the library's
Costs:  a much longer first step, minutes with an empty cache; memory during the trials
See:    torch.compile in PyTorch's documentation, on mode
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
    # otherwise the ten fastest of each product are printed
    torch._inductor.config.autotune_num_choices_displayed = 0
    model = torch.compile(model, mode="max-autotune-no-cudagraphs")
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
