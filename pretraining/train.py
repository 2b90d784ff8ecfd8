"""Pretraining: a run that one keeps, on the techniques that pay on this device.

The loop of the ladder with what a long run needs besides. Gradients of several batches add up to a
step of many tokens, their norm is clipped, and the learning rate follows a schedule. Documents that
are never trained on are scored at intervals. What a run needs to continue is saved as it goes.
Techniques are diffs: those asked for are merged into this file, and the run keeps the result.

    make train
    make train WITH="flash_attention fused_optimizer" STEPS=2000
    make train RESUME=1
    .venv/bin/torchrun --nproc-per-node=8 -m pretraining.train

See:    Karpathy 2024, build-nanogpt, whose settings are the defaults on a GPU
"""

import torch

from pretraining.learning_rate import decay_matrices_only, learning_rate, set_learning_rate
from pretraining.start import run_script
from pretraining.token_windows import TokenBatches
from pretraining.training_run import Run
from Utils.model import GPT


def explicit_attention(q, k, v):  # each (B, n_head, T, head_dim)
    T, head_dim = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / head_dim**0.5  # (B, n_head, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(diagonal=1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return weights @ v  # (B, n_head, T, head_dim)


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("highest")
    batches = TokenBatches(args)
    model = GPT(
        args.config,
        attention=explicit_attention,
        vocab_size=50_257,
        loss=torch.nn.functional.cross_entropy,
    ).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    decay_matrices_only(optimizer, args.weight_decay)
    run = Run(args, model, optimizer, batches)

    def losses(batches):
        for batch in batches:
            idx, targets = (x.to(args.device, non_blocking=True) for x in batch)  # each (B, T)
            logits, loss = model(idx, targets)
            yield loss

    for step in run.steps():  # a resumed run continues after its last checkpoint
        for loss in losses(run.batches(step)):
            (loss / args.accumulation).backward()  # gradients add up: their sum is the step's mean
            run.add(loss.detach())
        gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        set_learning_rate(optimizer, learning_rate(step, args))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.log(step, gradient_norm)
        if run.validates_after(step):
            with torch.no_grad():
                run.validate(losses(batches.held_out()))
    run.finish()


if __name__ == "__main__":
    run_script(main, __doc__)
