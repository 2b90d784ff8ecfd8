"""Each parameter is updated as soon as its gradient is there, and the gradient freed at once.

The usual loop holds a gradient for every parameter until the last one is there, 4 bytes each. Here
a hook of each parameter runs an AdamW of its own the moment autograd has accumulated the gradient,
while the backward pass is still on its way to the layers before. A compiled graph hands out all of
its gradients at its end, so blocks are compiled one by one: then a block's are the most that wait.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  memory: nearly all gradients but the embedding's, which waits for both of its uses
Costs:  an optimizer's calls for each parameter; gradients that nobody can clip or accumulate
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
    optimizer = {p: torch.optim.AdamW([p], fused=True) for p in model.parameters()}
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
