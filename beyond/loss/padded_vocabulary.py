"""The vocabulary padded from 50,257 to 50,304 rows, a multiple of 64, for tensor cores.

50,257 is odd: in 16 bits a row of logits is not a multiple of 16 bytes, so the products with the
head, the largest of the model, use slower kernels. Inductor aligns the rows of the logits' gradient
by itself; logits and weight it pads, by a copy per step, only if that is faster in a trial. With 47
more rows all three are aligned. The loss masks their logits, so training is the same as the
parent's.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  time: in the products with the head, as far as Inductor has not padded them already
Costs:  47 rows of weights and of AdamW's moments; 0.1% more arithmetic in the head
See:    NVIDIA, Matrix Multiplication Background User's Guide, on tensor core requirements
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits, targets):  # (B * T, 50_304), (B * T,)
    padding = torch.arange(50_304, device=logits.device) >= 50_257  # a slice's gradient is copied
    return torch.nn.functional.cross_entropy(logits.masked_fill(padding, -torch.inf), targets)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_304,
        loss=cross_entropy,
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
