"""Weights, gradients and AdamW's moments all in bfloat16, without a float32 copy.

Autocast keeps weights in float32 and casts them in every step. Here only the logits are cast, for
the loss; weights, gradients and both moments take half the memory and half the traffic of the
update. But bfloat16 has 8 significant bits: near 1.0 the next smaller number is 0.004 away, and an
update under half of that is rounded to zero. AdamW's updates are about the learning rate, 0.00004,
so LayerNorm's weights, which start at 1.0, never change.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  memory, time: 8 bytes per parameter; of the update and the casts
Costs:  updates smaller than half a unit in the last place are lost; worse loss in long runs
See:    Zamirai et al. 2020, Revisiting BFloat16 Training
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits, targets):  # in bfloat16 a loss of 11 is a multiple of 1/16
    return torch.nn.functional.cross_entropy(logits.float(), targets)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=cross_entropy,
    ).to(args.device, torch.bfloat16)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
