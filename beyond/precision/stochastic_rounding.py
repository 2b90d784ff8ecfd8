"""Updated weights rounded up or down by chance, so that small updates count on average.

Rounding to the nearest, the parent loses every update below half a unit in the last place. Here an
update of a tenth of a unit moves the weight by a whole one in a tenth of all cases: right on
average, without a float32 copy. The cost is noise of up to a unit in every weight.

Parent: pure_bfloat16
Needs:  tf32, bfloat16, compile, package torchao
Gains:  nothing in time: updates count that the parent loses, in the same memory
Costs:  noise; an update compiled for each shape of parameter; a kernel a parameter, and one for its
        random seed
See:    Zamirai et al. 2020, Revisiting BFloat16 Training; torchao/optim/README.md
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def flash_attention(q, k, v):  # each (B, n_head, T, head_dim)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def cross_entropy(logits, targets):  # in bfloat16 a loss of 11 is a multiple of 1/16
    return torch.nn.functional.cross_entropy(logits.float(), targets)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=flash_attention,
        vocab_size=50_257,
        loss=cross_entropy,
    ).to(args.device, torch.bfloat16)
    model = torch.compile(model)
    # AdamW's default of 1e-3 is too high for small batches: rounding errors grow to whole nats.
    from torchao.optim import _AdamW  # here, so that --help does without the package

    optimizer = _AdamW(model.parameters(), lr=4e-5, bf16_stochastic_round=True)

    with Run(args, model, optimizer) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            logits, loss = model(idx, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
