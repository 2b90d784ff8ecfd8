"""AdamW with both moments in 8 bits instead of 32.

The moments are stored in blocks, each with its own scale, as indices into a table that is dense
near zero. An update unpacks a block, computes in float32 and packs it again. The optimizer's state
shrinks from 8 bytes per parameter to about 2. Tensors of fewer than 4,096 elements keep 32 bits.

Parent: flash_attention
Needs:  tf32, bfloat16, compile, bitsandbytes
Gains:  memory: about 6 bytes per parameter. No time: 0.83x on an H200, where fused_optimizer is
        1.05x over the same parent
Costs:  precision of the moments; time for unpacking and packing, a lot of it on a CPU; on a GPU
        the host waits for the device after each parameter (bitsandbytes 0.50)
See:    Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization (ICLR)
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
    from bitsandbytes.optim import AdamW8bit  # here, so that --help does without the package

    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    # The other values are torch's defaults; bitsandbytes has others.
    optimizer = AdamW8bit(
        model.parameters(), lr=4e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    )

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
