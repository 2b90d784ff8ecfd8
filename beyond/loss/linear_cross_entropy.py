"""Head and loss in one function of torch, which computes the logits in chunks and keeps none.

`linear_cross_entropy` takes the head's input and weight in place of the logits. For each chunk of
rows it computes logits, loss and gradient, and adds the latter to the gradients of both operands,
so the backward pass only multiplies them by a factor. Its default of chunks as wide as the model is
wrong for a narrow model: 128 here, and each moves the head's whole gradient. Autocast does not
reach inside: both operands are cast by hand.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, torch 2.13
Gains:  memory: all but an eighth of the logits and of their gradient
Costs:  approximate: in bfloat16 the printed loss is rounded to 8 bits, gradients are summed in
        bfloat16; a break in the compiled graph
See:    torch.nn.functional.linear_cross_entropy in PyTorch's documentation
"""

from functools import partial

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@torch.compiler.disable  # its chunks are computed eagerly either way
def cross_entropy(weight, x, targets):  # (V, C), (B * T, C), (B * T,)
    options = torch.nn.LinearCrossEntropyOptions(
        chunking_method=None, batch_chunk_size=-(-len(x) // 8)
    )
    x, weight = x.bfloat16(), weight.bfloat16()
    return torch.nn.functional.linear_cross_entropy(x, weight, targets, options=options)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=cross_entropy,
    ).to(args.device)
    model.lm_head.forward = lambda x: x  # the loss multiplies by its weight
    model.loss = partial(cross_entropy, model.lm_head.weight)
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
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
