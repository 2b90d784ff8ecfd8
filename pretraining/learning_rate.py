"""The learning rate of a step, and which parameters decay."""

import math

BETAS = (0.9, 0.95)  # decay of AdamW's moments, as in GPT-3
LOWEST = 0.1  # share of the highest learning rate that is left at the end


def learning_rate(step, args):
    """Return the rate: linear warm-up, then half a cosine from args.learning_rate to a tenth.

    step: counted from 0. Reads learning_rate, warmup and steps from args.
    """
    if step < args.warmup:
        return args.learning_rate * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1, progress)))  # from 1 to 0
    return args.learning_rate * (LOWEST + (1 - LOWEST) * cosine)


def set_learning_rate(optimizer, value):
    for group in optimizer.param_groups:
        group["lr"] = value


def decay_matrices_only(optimizer, weight_decay):
    """Split the optimizer's group: weight decay for matrices, none for biases and LayerNorms.

    The groups are split here, not where the optimizer is made, so that a technique can put another
    optimizer in its place.
    """
    (group,) = optimizer.param_groups
    parameters = group["params"]
    group |= {"betas": BETAS, "weight_decay": weight_decay}
    group["params"] = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    optimizer.add_param_group({**group, "params": vectors, "weight_decay": 0.0})
