"""Results of matrix products and attention kept; only the cheap rest of a block recomputed.

Checkpointing a whole block repeats its matrix products, nearly all its arithmetic. Here a policy
names the operations whose results stay: the products and attention. LayerNorm, GELU and the sums
run again in the backward pass; they are bound by memory, and the compiler fuses them into what
reads them.

Parent: gradient_checkpointing
Needs:  tf32, bfloat16, compile
Gains:  time: products and attention of the second forward pass; memory over fused_optimizer
Costs:  memory over the parent: the products' results stay, about 8 tensors of (B, T, C) a block
See:    torch.utils.checkpoint in PyTorch's documentation, on selective checkpointing
"""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def is_kept(context, operator, *args, **kwargs):  # attention by whichever kernel
    return any(name in str(operator) for name in ("aten.mm", "aten.addmm", "dot_product"))


def recompute(block):
    forward = block.forward
    contexts = partial(create_selective_checkpoint_contexts, is_kept)
    block.forward = lambda x: checkpoint(forward, x, use_reentrant=False, context_fn=contexts)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    for block in model.h:
        recompute(block)
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
