"""Float32 matrix products on tensor cores, with inputs rounded to TF32.

TF32 keeps float32's 8 exponent bits and 10 of its 23 mantissa bits; products are still summed in
float32. Tensor cores multiply small matrices in one instruction; ordinary units multiply number by
number. Storage stays float32, so memory traffic and peak memory do not change.

Parent: no_optimization
Needs:  tf32; most CPUs have no equivalent
Gains:  time: up to 8x in a product on an A100 or H100; on GeForce cards the peak of TF32 equals
        float32's, so expect 1.1x to 1.3x
Costs:  13 mantissa bits of the inputs, in matrix products only
See:    NVIDIA A100 Tensor Core GPU Architecture, 2020, on TF32
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
