"""Memory reserved as ranges of addresses that grow, instead of separate blocks.

PyTorch's allocator takes blocks from the driver and cuts tensors from them. A freed piece serves
only a tensor that fits into it, so memory is lost between pieces: reserved, not allocated. With
expandable segments a block is a range of virtual addresses, to which pages are mapped as it grows;
what is free at its end joins what comes next.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, gpu_allocator
Gains:  memory: reserved, not allocated; most where the sizes of tensors vary
Costs:  none known for a single process; memory cannot be shared with other processes
See:    PyTorch's CUDA semantics, on PYTORCH_ALLOC_CONF
"""

import os

os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # read when torch is imported
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
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
