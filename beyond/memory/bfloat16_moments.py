"""AdamW's two moments in bfloat16, weights and gradients in float32.

The moments are half of what AdamW keeps: two running means beside each weight. In bfloat16 they
take 4 bytes a parameter instead of 8, and the update moves 20 bytes instead of 28. The fused kernel
reads them, computes in float32 and rounds what it writes back. A moment that changes by less than
half a unit of its 8 bits stays as it is, so the means follow slow changes less closely.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, mixed_moments, torch 2.13
Gains:  memory, time: 4 bytes per parameter; of the update, which moves 0.7 times the bytes
Costs:  all but 8 significant bits of the moments; numerics not yet run on a GPU
See:    DeepSeek-AI 2024, DeepSeek-V3, section 3.3; torchtitan, docs/bf16_optimizer_states.md
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)
    for p in model.parameters():  # the first step would create them in float32
        m, v = (torch.zeros_like(p, dtype=torch.bfloat16) for _ in range(2))
        step = torch.zeros((), device=p.device)
        optimizer.state[p] = {"step": step, "exp_avg": m, "exp_avg_sq": v}

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
