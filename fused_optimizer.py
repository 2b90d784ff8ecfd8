"""AdamW's whole update in one kernel over many parameters.

AdamW is a dozen element-wise operations on the weight, its gradient and two moments. By default
torch runs them one after the other, over lists of tensors on a GPU and tensor by tensor on a CPU;
each reads and writes memory. Fused, every number is read once, updated in registers and written
once. The arithmetic is the same.

Parent: flash_attention
Needs:  tf32, bfloat16, compile
Gains:  time, memory: of the optimizer and its temporaries; independent of the batch size, so
        most visible with small batches
Costs:  rarely time: 68 TFLOP/s in place of 85 on an A40 (torch 2.2, pytorch issue 121857)
See:    torch.optim.AdamW in PyTorch's documentation, on fused
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
