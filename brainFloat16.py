"""Autocast: matrix products in bfloat16, weights and their update in float32.

bfloat16 is float32 cut to 16 bits: the same 8 exponent bits, so nothing overflows and no loss
scaling is needed, and 7 bits of mantissa. Tensor cores run it at twice the rate of TF32. Operands
and saved activations of the products take half the memory. Autocast picks the type of each
operation. On a GPU softmax and LayerNorm stay in float32; the log_softmax of the loss does not. The
backward pass uses the types of the forward pass.

Parent: tensorFloat32
Needs:  tf32, bfloat16; on a CPU that is AVX512-BF16 or AMX
Gains:  time, memory: activations are kept in 16 bits
Costs:  mantissa bits in the products; a bfloat16 copy of each weight, made in every step
See:    Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training
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
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
