"""Plain float32, every formula as it is written: the baseline of all comparisons.

Every matrix product runs in full float32, which a GPU computes outside its tensor cores. Attention
writes T x T scores to memory and reads them back, several times over. Every operation is a separate
kernel, and the host launches them one by one.

Parent: none
Needs:  nothing
Gains:  nothing: it is the reference for the others
Costs:  time and memory
See:    Radford et al. 2019, Language Models are Unsupervised Multitask Learners
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
    torch.set_float32_matmul_precision("highest")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=explicit_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
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
