"""Weights, gradients and AdamW's state sharded: each process keeps 1/N of every tensor.

Before a block computes, an all-gather collects its weights; afterwards they are freed. In the
backward pass a reduce-scatter gives each process the mean gradients of its own shard, and its AdamW
updates that shard only. The next block's weights arrive while this one computes. Blocks are
compiled one by one, between these exchanges, and the loss separately. The embedding and the head
share one tensor, so it belongs to the root module and stays gathered during the whole step.

Parent: asynchronous_logging
Needs:  tf32, bfloat16, compile, device_queue, distributed; several GPUs for a gain:
        make ddp T=fully_sharded GPUS=4, or torchrun
Gains:  memory: weights, gradients and state in N parts, so models too large for one GPU
Costs:  between the layers 1.5 times the elements of an all-reduce, the weights in float32, as
        autocast casts behind the gather; FSDP's MixedPrecisionPolicy, not used here, would halve
        those bytes
See:    Zhao et al. 2023, PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel
"""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@torch.compile
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
    mesh = init_device_mesh(args.device.type, (args.world_size,))
    for block in model.h:
        block.compile()  # they all run one graph, which is compiled once
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
