"""The launches of forward and backward recorded as CUDA graphs, and replayed with one call each.

Python and the driver take microseconds to launch a kernel, and a step has hundreds; where kernels
are shorter than that, the GPU waits for the host. A recorded graph is submitted whole. Its kernels
have their addresses built in, so each replay writes its outputs, loss and gradients, over the last
one's. What is kept for longer is therefore cloned, and gradients are dropped before the next
replay, by set_to_none: kept and added to, they would be overwritten.

Parent: asynchronous_logging
Needs:  tf32, bfloat16, compile, cuda_graphs; shapes and addresses that stay the same
Gains:  time: between kernels, so most where they are short: small batches, small models
Costs:  memory that the graphs keep for themselves; two slow steps, to warm up and to record
See:    Nguyen et al. 2021, Accelerating PyTorch with CUDA Graphs (PyTorch's blog)
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
    model = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

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
