"""FlashAttention-4 in place of the kernel that torch selects.

Version 4 is written in Python for Hopper and Blackwell: warps that copy, multiply and rescale work
at the same time on different tiles, and part of the exponentials are computed as polynomials, since
tensor cores have become faster than the unit for exponentials. torch calls it under the name of its
own flash kernel. FlashAttention-3, for Hopper alone, is "FA3" in the same line.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, flash_attention_4
Gains:  time: 9% with version 3 at T=2048 and heads of 128 (nanochat); version 4 none known
Costs:  a pre-release, which pip installs with --pre; another order of summation
See:    Shah et al. 2024, FlashAttention-3; Dao-AILab/flash-attention, flash_attn/cute
"""

import torch
from torch.nn.attention import SDPBackend, activate_flash_attention_impl, sdpa_kernel

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    activate_flash_attention_impl("FA4")
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
