"""The causal mask passed as a tensor instead of `is_causal=True`: what not to do.

The mask is the same, but a kernel that is told only a tensor cannot know that half of it is hidden.
FlashAttention and cuDNN's kernel take no such mask or none that is cheap, so torch chooses the
memory-efficient kernel, which reads the mask and computes both halves. Sliding windows and padding
written by hand end here.

Parent: flash_attention
Needs:  tf32, bfloat16, compile
Gains:  nothing: it shows a habit's price
Costs:  time: 226 in place of 309 thousand tokens/s on 8 A100 (nanochat pull request 540)
See:    torch.nn.functional.scaled_dot_product_attention in PyTorch's documentation
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    T = q.size(2)
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


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
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)

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
