"""Forward and backward recorded as CUDA graphs, each replayed with one call.

Python and the driver take microseconds to launch a kernel, and a step has hundreds. Where kernels
are shorter than that, the GPU waits for the host. A recorded graph is submitted as a whole. Its
kernels use fixed addresses, so each replay overwrites the outputs of the last one, loss and
gradients. Therefore the loss is cloned, and set_to_none drops the gradients before the next replay.

Parent: asynchronous_logging
Needs:  tf32, bfloat16, compile, device_queue, cuda_graphs; constant shapes and addresses
Gains:  time: between kernels, most with short ones: small batches, small models
Costs:  memory that the graphs hold; two slow steps, for warm-up and recording
See:    Nguyen et al. 2021, Accelerating PyTorch with CUDA Graphs (PyTorch's blog)
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
    model = torch.compile(model, mode="reduce-overhead")
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
            run.log(loss.detach().clone())  # the next replay writes over the loss itself


if __name__ == "__main__":
    run_script(main, __doc__)
