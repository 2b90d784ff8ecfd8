"""8-bit AdamW whose moments lie in managed memory: under pressure they move to the host.

Managed memory has one address on both sides, and pages of it lie where they were used last. While
everything fits, the moments stay on the GPU. Where an allocation does not fit, the driver moves
pages of them to the host in its favour, and they come back for the update: a peak that would have
ended the run is paid for in transfers.

Parent: 8bit_optimizer
Needs:  tf32, bfloat16, compile, bitsandbytes, managed_memory
Gains:  memory: nothing while everything fits; at its edge, room for up to the optimizer's state
Costs:  under pressure, moments that cross the bus every step
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

    # torch's defaults, spelled out, as bitsandbytes has others
    optimizer = PagedAdamW8bit(
        model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
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
