"""Two backward passes per step, of which only the second one communicates.

Accumulated gradients need to be averaged only once. Under no_sync the gradients of the first half
stay in each process; the second backward pass adds to them, and the all-reduce averages the sum.
Without no_sync each half would communicate.

Parent: distributed_data_parallel
Needs:  tf32, bfloat16, compile, device_queue, distributed, distributed_data_parallel,
        batch multiple of 2
Gains:  memory: up to half of the activations, with the communication of one backward pass
Costs:  time: twice as many kernel launches, of smaller products
See:    Li et al. 2020, PyTorch Distributed, section 3.2.4
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
            (first, idx), (first_targets, targets) = idx.chunk(2), targets.chunk(2)
            with model.no_sync():  # its gradients wait for the other half's
                with torch.autocast(args.device.type, dtype=torch.bfloat16):
                    half = model(first, first_targets)[1] / 2  # its share of the batch's mean
                half.backward()
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log((half + loss / 2).detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
