"""An output head with its own weight, which shows what weight tying saves.

GPT-2 uses one matrix twice, to look up tokens and to score them, and its gradient is the sum of
both uses. Untied, the head starts as a copy, so the first loss is the parent's; from the first
update on the two matrices differ. The arithmetic of forward and backward stays the same. There are
50,257 x n_embd more parameters to store, to differentiate and to update.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile
Gains:  nothing: the two matrices may differ; their gradients need no addition
Costs:  memory: 16 bytes for each of 38.6M more parameters; time in the optimizer
See:    Press and Wolf 2017, Using the Output Embedding to Improve Language Models
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
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    model.lm_head.weight = torch.nn.Parameter(model.wte.weight.detach().clone())
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
