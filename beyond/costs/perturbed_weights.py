"""The baseline with each weight shifted by one rounding: what "the same training" means.

Each weight is multiplied by 1 + 2**-24 or 1 - 2**-24 at random, which moves it to the next float32
number, up or down. Another kernel or another order of sums rounds by as much. So this script's
losses show how far two runs of the same formulas part, step by step: a technique that stays as near
changes nothing that can be seen. With 2**-8 the shift is one rounding of bfloat16.

Parent: no_optimization
Needs:  nothing
Gains:  nothing: its losses measure the effect of rounding
Costs:  nothing
See:    Higham 2002, Accuracy and Stability of Numerical Algorithms, section 2.2, on unit roundoff
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script

ROUNDING = 2**-24  # the largest relative error of a rounding to float32; to bfloat16: 2**-8


def explicit_attention(q, k, v):  # each (B, n_head, T, head_dim)
    T, head_dim = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / head_dim**0.5  # (B, n_head, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(diagonal=1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return weights @ v  # (B, n_head, T, head_dim)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("highest")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=explicit_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    with torch.no_grad():
        for p in model.parameters():
            p.addcmul_(p, torch.randn_like(p).sign(), value=ROUNDING)  # up or down, at random
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)

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
