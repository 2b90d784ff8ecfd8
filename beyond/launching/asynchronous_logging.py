"""Loss logging without synchronization: losses stay on the device until the run ends.

A GPU works through a queue that the host fills. `.item()` needs a number, so the host waits until
the queue is empty; then the device waits until the host has launched the next kernels. Without
`.item()` the host continues. One wait remains: a copy from pageable memory also waits for the work
queued before it, so the host gets ahead only by the end of a step and the drawing of a batch.

Parent: padded_vocabulary
Needs:  tf32, bfloat16, compile, device_queue
Gains:  time: the device's idle time between the last kernel of a step and the next batch's copy
Costs:  the loss is not known during training; one scalar per step on the device
See:    PyTorch's Performance Tuning Guide, on avoiding unnecessary CPU-GPU synchronization
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
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.detach())  # stays on the device, to be read after the run


if __name__ == "__main__":
    run_script(main, __doc__)
