"""The model compiled: Python traced once, operations fused into generated kernels.

Eager PyTorch launches one kernel per operation; each reads its inputs from memory and writes its
outputs back. TorchDynamo captures the model as a graph, AOTAutograd adds the backward graph, and
Inductor fuses neighbours, such as bias and GELU, or mask and softmax: what lies between them stays
in registers. The T x T scores are still written and read. The result is fewer kernels and less
memory traffic.

Parent: brainFloat16
Needs:  tf32, bfloat16, compile
Gains:  time, memory: all but matrix products mostly gets faster; fewer activations are stored
Costs:  a long first step; recompilation when a shape changes; a very small GPT got slower on an
        RTX 3080, 48.2 ms in place of 43.7 (nanoGPT's pull request 376)
See:    Ansel et al. 2024, PyTorch 2 (ASPLOS)
"""

import torch

from Utils.data import TokenBatches
from Utils.model import GPT
from Utils.run import Run, run_script


def explicit_attention(q, k, v):  # each (B, n_head, T, head_dim)
    T, head_dim = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / head_dim**0.5  # (B, n_head, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(diagonal=1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return weights @ v  # (B, n_head, T, head_dim)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=explicit_attention,
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
