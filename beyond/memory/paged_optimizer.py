"""8-bit AdamW with moments in managed memory, which move to the host under pressure.

Managed memory has one address for GPU and host, and its pages lie where they were used last. While
everything fits, the moments stay on the GPU. When an allocation does not fit, the driver moves
pages of moments to the host, and back for the update. A peak that would end the run costs transfers
instead.

Parent: 8bit_optimizer
Needs:  tf32, bfloat16, compile, bitsandbytes, managed_memory
Gains:  memory: none while everything fits; under pressure, up to the optimizer's state
Costs:  under pressure, transfers of moments in every step
See:    Dettmers et al. 2023, QLoRA: Efficient Finetuning of Quantized LLMs, on paged optimizers
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
    from bitsandbytes.optim import PagedAdamW8bit  # here, so that --help does without the package

    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    # The other values are torch's defaults; bitsandbytes has others.
    optimizer = PagedAdamW8bit(
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
