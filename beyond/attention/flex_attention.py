"""Attention with a mask written as a Python function, compiled into one Triton kernel.

FlexAttention puts the function that says who sees whom, and any change of the scores, into a
template of FlashAttention. A block mask lists the tiles that are not empty. Only those are
computed, half with a causal mask, fewer with a sliding window or packed documents. Here the mask is
the causal one, so the difference to the parent is the price of the template.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, flex_attention
Gains:  nothing: windows and documents gain time, which is_causal cannot express
Costs:  time: 218 to 205 thousand tokens/s on two RTX 4090, with masks for windows and documents
        (tyler-romero/nanogpt-speedrun)
See:    Dong et al. 2024, Flex Attention
"""

from functools import partial

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def causal(batch, head, query, key):
    return query >= key


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    T = args.seq_len
    mask = create_block_mask(causal, None, None, T, T, device=args.device)
    model = GPT(
        args.config,
        attention=partial(flex_attention, block_mask=mask),
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
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
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
