"""Generated kernels tuned by coordinate descent: tile sizes and warps tried one after the other.

For element-wise kernels and reductions Inductor chooses tile sizes by rule, or from a handful of
candidates. With this switch it starts from the best of them and changes one number at a time as
long as the kernel becomes faster. Matrix products are not touched; max_autotune tunes those.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, triton_tuning
Gains:  time: 1.7% on 8 H100 (modded-nanogpt's notes)
Costs:  25 minutes of compiling there; the results are cached for one GPU and version
See:    torch/_inductor/runtime/coordinate_descent_tuner.py
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
    model = torch.compile(model, options={"coordinate_descent_tuning": True})
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
