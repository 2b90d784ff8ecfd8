"""The head's three products in 8-bit floats; the blocks in bfloat16.

The head is the model's largest product, over a quarter of all arithmetic at this width, so casting
its operands is paid back sooner than in the blocks. Its weight stays the embedding's: it is cast in
every step, not replaced. Sizes must be multiples of 16, which the parent's padding provides.

Parent: padded_vocabulary
Needs:  tf32, bfloat16, compile, float8, package torchao
Gains:  time: about 1% at this width on an H100 (nanochat, dev/LOG.md, 13 January 2026)
Costs:  all but 3 or 2 mantissa bits of the head's operands, the logits' gradient among them
See:    Micikevicius et al. 2022, FP8 Formats for Deep Learning; torchao's page on float8
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

    convert_to_float8_training(model, module_filter_fn=lambda layer, name: name == "lm_head")
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
