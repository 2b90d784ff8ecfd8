"""Muon for the blocks' matrices: momentum, made orthogonal by five steps of Newton and Schulz.

Another optimizer, which reaches a loss in fewer steps: here is what each step costs. The update of
a matrix is replaced by the nearest one whose singular values are all about 1, by products of the
matrix with itself. They are independent of the batch, so large batches hide them. Embeddings, norms
and biases stay with AdamW.

Parent: fused_optimizer
Needs:  tf32, bfloat16, compile; in float16 gradients are still scaled where Muon takes them
Gains:  memory: one moment instead of two for the matrices; fewer steps, which no row here shows
Costs:  another optimizer; time: 0.6% on two RTX 4090 at 262,144 tokens a GPU and step
        (tyler-romero), 3.8% on 8 H100 (modded-nanogpt, track 3)
See:    Jordan et al. 2024, Muon; torch.optim.Muon in PyTorch's documentation
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
    matrices = [p for p in model.h.parameters() if p.ndim == 2]
    muon = torch.optim.Muon(matrices, lr=4e-5, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    vectors = [p for p in model.parameters() if p.ndim == 1]
    remaining = [model.wte.weight, model.wpe.weight, *vectors]
    optimizer = torch.optim.AdamW(remaining, lr=4e-5, fused=True)

    with Run(args, model, [muon, optimizer]) as run:
        for idx, targets in run.steps(batches):
            idx, targets = idx.to(args.device), targets.to(args.device)  # each (B, T)
            with torch.autocast(args.device.type, dtype=torch.bfloat16):
                logits, loss = model(idx, targets)
            loss.backward()
            muon.step()
            optimizer.step()
            muon.zero_grad(set_to_none=True)
            optimizer.zero_grad(set_to_none=True)
            run.log(loss.item())  # .item() waits until the device has finished the step


if __name__ == "__main__":
    run_script(main, __doc__)
