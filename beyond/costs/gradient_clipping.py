"""Gradients scaled down where their norm is above 1, as most training recipes do.

The norm of all gradients together needs each of them once before any is scaled, so they are read
twice and written once more than without. Both passes run over lists of tensors, in a few kernels,
and the norm stays on the device: the host does not wait.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile; in float16 gradients are still scaled where it clips them
Gains:  nothing: a step after a bad batch stays small
Costs:  another optimizer: updates are of scaled gradients; time: 12 bytes moved per parameter
See:    Pascanu et al. 2013, On the difficulty of training recurrent neural networks
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

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
