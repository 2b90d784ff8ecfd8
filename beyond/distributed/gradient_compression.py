"""Gradients rounded to bfloat16 for the all-reduce, which halves its bytes.

A communication hook casts each full bucket, sums it in bfloat16 over the processes, and casts the
mean back to float32. It pays where links between GPUs are slow relative to their arithmetic.

Parent: distributed_data_parallel
Needs:  tf32, bfloat16, compile, device_queue, distributed, nccl; several GPUs for a gain
Gains:  time: half of the communication that a step waits for
Costs:  gradients with 8 significant bits, also in their sum
See:    PyTorch's documentation of torch.distributed.algorithms.ddp_comm_hooks
"""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
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
    model.register_comm_hook(None, bf16_compress_hook)
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
