"""AdamW in one kernel that learns of an overflow on the device, so the host no longer waits.

An overflow's update must not be made. Other optimizers are Python that runs or does not, so the
scaler reads on the host whether a gradient is infinite. The fused kernel takes that answer, and the
scale to divide gradients by, as tensors on the device: after an overflow it leaves weights and
moments as they are. Otherwise it updates all of them in registers, in one pass over memory.

Parent: float16_attention
Needs:  float16, compile
Gains:  time, memory: one synchronization less in every step, and the optimizer's temporaries
Costs:  rarely time: 68 TFLOP/s in place of 85 on an A40 (torch 2.2, pytorch issue 121857)
See:    torch.optim.AdamW in PyTorch's documentation, on fused
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def fused_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=fused_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5, fused=True)
    scaler = torch.amp.GradScaler(args.device.type)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.float16):
                logits, loss = model(idx, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # waits, unless fused: an overflow's step must not be made
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
