"""The float16 model compiled: Python traced once, operations fused into generated kernels.

The loss scale stays outside: Dynamo, AOTAutograd and Inductor see the model under autocast, whose
casts become part of the kernels beside them. The graph of the backward pass gets a scaled gradient
of the loss and is otherwise that of torch_compile. Scaling, the check for infinities and the update
run as before. Triton generates code from compute capability 7.0 on.

Parent: float16_grad_scaler
Needs:  float16, compile
Gains:  time, memory: all but matrix products mostly gets faster; fewer activations are stored
Costs:  a long first step; recompilation when a shape changes
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
