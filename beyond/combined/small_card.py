"""GPT-2 124M at 4x1024 on a card of 4 GiB: moments in bfloat16, no whole logits, growing segments.

Three costs are independent of each other: 28 bytes moved per parameter, the logits with their
gradient, and memory that is reserved but lies between tensors. The lines of one script lower each.
None of them recomputes anything in the blocks, so a step does hardly more arithmetic. Checkpointing
would free the blocks' activations too, for a third more of it; here they fit.

Parent: bfloat16_moments
Needs:  tf32, bfloat16, compile, mixed_moments, torch 2.13, gpu_allocator
Gains:  memory: those of its parts; the parent runs out of it on a virtual RTX 3050 of 4 GiB
Costs:  those of its parts: smaller products in the head, moments of 8 bits
See:    the scripts whose lines it takes: chunked_loss, expandable_segments
"""

import os

os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # read when torch is imported
import torch

from Utils.base.errors import Unsupported
from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def check_chunks(loss, tokens):  # if Inductor takes none, it does not say so
    if any(x.shape == (tokens, 50_257) for x in getattr(loss.grad_fn, "saved_tensors", ())):
        raise Unsupported("loss in chunks: needs Inductor, and more tokens than channels")


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
    chunks = {"auto_chunker.enable": True, "auto_chunker.amplify_ratio_threshold": 1}
    loss_alone = torch.compile(lambda idx, targets: model(idx, targets)[1], options=chunks)
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
                loss = loss_alone(idx, targets)
            check_chunks(loss, targets.numel())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
