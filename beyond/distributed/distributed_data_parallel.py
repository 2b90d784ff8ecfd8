"""Data parallelism: each process takes a share of the batch, gradients are averaged.

Every process holds the whole model. In the backward pass, as soon as the gradients of a few layers
fill a bucket, an all-reduce averages them while the layers below are still being computed: the
communication overlaps with arithmetic. The model is wrapped before it is compiled, so that the
compiled graph is split at the buckets; otherwise all gradients would arrive at its end.

Parent: asynchronous_logging
Needs:  tf32, bfloat16, compile, device_queue, distributed; several GPUs for a gain:
        make ddp GPUS=4, or torchrun
Gains:  time: each of N processes computes 1/N of the batch
Costs:  an all-reduce of all gradients per step; the whole model and its state in each process
See:    Li et al. 2020, PyTorch Distributed: Experiences on Accelerating Data Parallel Training
"""

import torch
from torch.nn.parallel import DistributedDataParallel

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
    torch.distributed.init_process_group(args.backend, timeout=args.patience)
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_304,
        loss=cross_entropy,
    ).to(args.device)
    model = DistributedDataParallel(
        model, bucket_cap_mb=args.bucket_mb, gradient_as_bucket_view=True
    )
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B / ranks, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
