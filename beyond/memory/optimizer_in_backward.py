"""Each parameter updated, and its gradient freed, during the backward pass.

The usual loop holds the gradients of all parameters at once, 4 bytes each. Here a hook on each
parameter runs its own AdamW as soon as autograd has accumulated the gradient, while the backward
pass continues with the earlier layers. A compiled graph returns all gradients at its end, so blocks
are compiled one by one: then only the gradients of one block exist at once, and the embedding's,
which the head fills first.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile; in float16 gradients are still scaled where it takes them
Gains:  memory: nearly all gradients except the embedding's, which is used twice
Costs:  one optimizer call per parameter; no clipping and no accumulation of gradients
See:    Lv et al. 2023, Full Parameter Fine-tuning for Large Language Models with Limited Resources
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=torch.compile(torch.nn.functional.cross_entropy),
    ).to(args.device)
    for block in model.h:
        block.compile()  # they all run one graph, which is compiled once
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = {p: torch.optim.AdamW([p], lr=4e-5, fused=True) for p in model.parameters()}
    for p in optimizer:
        p.register_post_accumulate_grad_hook(lambda p: optimizer[p].step())
        p.register_post_accumulate_grad_hook(lambda p: optimizer[p].zero_grad(set_to_none=True))

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
