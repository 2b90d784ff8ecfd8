"""Batches from worker processes, in pinned memory, copied without the host waiting.

Workers draw batches ahead of time, so the next one is ready when the loop needs it. Pinned memory
cannot be swapped out: the GPU's copy engine reads it directly, the copy is queued like a kernel,
and `.to` returns at once. The host fetches and sends the next batch while this one computes, and
nothing in the loop waits for the device.

Parent: asynchronous_logging
Needs:  tf32, bfloat16, compile, device_queue, copy_engine; on a CPU
        workers compete with training for cores
Gains:  time: the wait for a batch, and the device's idle time while the host waits for the copy
Costs:  seconds until the workers have imported torch; their memory, which is not part of the
        measured peak; transfer of a batch between processes, slower than drawing it here
See:    A guide on good usage of non_blocking and pin_memory(), in PyTorch's tutorials
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
    batches = torch.utils.data.DataLoader(
        batches,
        batch_size=None,  # each item is a batch already
        sampler=range(args.steps),  # one a step and in this order, whichever worker is done first
        num_workers=2,
        pin_memory=args.device.type == "cuda",  # pageable memory cannot be copied without waiting
        **batches.worker_options,
    )
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
            idx = idx.to(args.device, non_blocking=True)  # (B, T)
            targets = targets.to(args.device, non_blocking=True)  # (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
