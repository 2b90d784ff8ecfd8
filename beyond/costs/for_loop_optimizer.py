"""AdamW one parameter after the other: what eight kernel launches for each of 148 tensors cost.

On a GPU torch runs AdamW's eight operations over lists of tensors by default (foreach), each in one
kernel or a few. Turned off, each tensor takes eight kernels of its own, 1,184 in all, and for most
of them launching takes longer than the update. An optimizer written by hand as a loop over
parameters does the same.

Parent: flash_attention
Needs:  tf32, bfloat16, compile, foreach
Gains:  memory: temporaries of one tensor instead of all
Costs:  time: of the kernel launches; most with small batches
See:    torch.optim in PyTorch's documentation, on for-loop, foreach and fused implementations
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, foreach=False)

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
