"""The blocks' linear layers in 8-bit floats, forward and backward; the head in bfloat16.

From compute capability 8.9 on, tensor cores multiply 8-bit floats at twice the rate of bfloat16.
E4M3 has 4 exponent bits, so each tensor is divided by its own scale, computed in every step, which
maps its largest element to the top of the range. Gradients use E5M2, which has more range. Finding
the largest element and casting read each operand once more, so only large products pay for it.

Parent: padded_vocabulary
Needs:  tf32, bfloat16, compile, float8, package torchao
Gains:  time: with large matrices; at the width of GPT-2 124M casts may cost more than they gain
Costs:  all but 3 or 2 mantissa bits of the operands; the casts; sizes must be multiples of 16
See:    Micikevicius et al. 2022, FP8 Formats for Deep Learning
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
    from torchao.float8 import convert_to_float8_training  # here, so that --help does without

    convert_to_float8_training(model, module_filter_fn=lambda layer, name: name != "lm_head")
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
