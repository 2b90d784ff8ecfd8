"""Autocast in float16, with a scaled loss so that gradients do not underflow.

float16 has 5 exponent bits: numbers below 6e-5 lose bits, those below 3e-8 become zero, and many
gradients are that small. The loss is multiplied by 65,536 before the backward pass, and the
gradients are divided by it before the update. After an overflow the update is skipped and the scale
halved. Tensor cores multiply float16 from compute capability 7.0 on, so this is the option for GPUs
without bfloat16.

Parent: tensorFloat32
Needs:  float16
Gains:  time, memory: activations are kept in 16 bits
Costs:  range; skipped updates, often the first ones; a check of each gradient for infinity, whose
        result the host waits for in every step, unless the optimizer is fused
See:    Micikevicius et al. 2018, Mixed Precision Training (ICLR)
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def explicit_attention(q, k, v):  # each (B, n_head, T, head_dim)
    T, head_dim = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / head_dim**0.5  # (B, n_head, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(diagonal=1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return weights @ v  # (B, n_head, T, head_dim)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=explicit_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)
    scaler = torch.amp.GradScaler(args.device.type)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.float16):
                logits, loss = model(idx, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # waits, unless fused: an overflow's step must not be made
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
