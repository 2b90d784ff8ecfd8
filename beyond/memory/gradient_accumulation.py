"""The batch in four parts, one after the other, with accumulated gradients.

The mean over a batch is the mean of the means of its quarters. So four backward passes, each of a
quarter of the loss, leave the same gradients as one pass over the whole batch, with a quarter of
the activations and logits in memory. It trains a batch that does not fit; where the batch fits,
products with fewer rows use the device less efficiently.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile, batch multiple of 4
Gains:  memory: up to three quarters of the activations
Costs:  time: four times as many kernel launches, of smaller products, and reading and writing
        gradients to add them; during that a compiled backward holds a second set of gradients
See:    Ott et al. 2018, Scaling Neural Machine Translation, on delayed updates
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
            mean = 0.0
            for part_idx, part_targets in zip(idx.chunk(4), targets.chunk(4), strict=True):
                with torch.autocast(args.device.type, dtype=torch.bfloat16):
                    loss = model(part_idx, part_targets)[1] / 4  # its share of the batch's mean
                loss.backward()
                mean += loss.detach()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(mean.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
