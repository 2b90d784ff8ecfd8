"""The loss stays on the device until the run has ended: no .item() in the loop.

A GPU works through a queue that the host fills. `.item()` asks for a number, so the host stands
still until the queue is empty, and the device then stands still until the host has launched the
next kernels. What can go on without the number need not ask for it. One wait is left: a copy to
the device from ordinary, pageable memory waits too until all that was queued before is done, so
the host gets ahead by no more than the end of a step and the drawing of the next batch.

Parent: padded_vocabulary
Needs:  tf32, bfloat16, compile; on a CPU, which has no queue, expect no effect
Gains:  time: the device's idle time between the last kernel of a step and the next batch's copy
Costs:  no loss to be seen while it trains, and none to stop at; a scalar on the device a step
See:    PyTorch's Performance Tuning Guide, on avoiding unnecessary CPU-GPU synchronization
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits, targets):  # (B * T, 50_304), (B * T,)
    return torch.nn.functional.cross_entropy(logits[:, :50_257], targets)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_304,
        loss=cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

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
