"""AdamW's moments sharded: each process updates 1/N of the weights and broadcasts them.

With averaged gradients, N processes make the same update N times and hold its two moments N times.
Here one process updates each parameter and broadcasts the new values. This is the first stage of
ZeRO; fully_sharded is the third.

Parent: distributed_data_parallel
Needs:  tf32, bfloat16, compile, device_queue, distributed, distributed_data_parallel; several GPUs
        for a gain: make ddp T=zero_redundancy GPUS=4, or torchrun
Gains:  memory: AdamW's moments in N parts
Costs:  a broadcast of all weights per step, after the update, which nothing hides
See:    Rajbhandari et al. 2020, ZeRO (section 5.1: optimizer state partitioning)
"""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
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
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=4e-5, fused=True)

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
