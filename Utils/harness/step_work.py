"""The work of a training step, and its modelled floor."""

import torch

from Utils.base.gpt2_sizes import VOCABULARY
from Utils.device import datasheets, measured_ceilings
from Utils.device.measured_ceilings import PRECISIONS

MIXED = {"float8", "int8"}  # needs of scripts with products of several types: no single ceiling


def precision_of(needs):
    """Return the precision of a script's matrix products, by name; None for several. The last of
    the needs counts, as autocast overrides TF32.
    """
    if MIXED.intersection(needs):
        return None
    return ["float32", *(need for need in needs if need in PRECISIONS)][-1]


def flops_per_token(config, seq_len):
    """Return the floating-point operations of GPT per token, with the full scores of attention:
    6 N + 12 n_layer n_embd T, with N the weights of all matrix products, including the head.
    """
    L, C = config.n_layer, config.n_embd
    weights = 12 * L * C**2 + VOCABULARY * C
    return 6 * weights + 12 * L * C * seq_len


def parts(config, batch_size, seq_len, precision):
    """Return the unavoidable work of a training step: (name, count, FLOP, bytes) of each part.

    Each of the three products of a linear layer reads its operands and writes its result once.
    Attention reads q, k, v and writes its mix; scores stay on the chip, and their masked half is
    not computed. AdamW reads weights, gradients and two moments, and writes three of them back, in
    float32. Element-wise operations are assumed to be fused into their neighbours.
    """
    L, C, T = config.n_layer, config.n_embd, seq_len
    tokens = batch_size * T
    size = 2 if PRECISIONS.get(precision) in (torch.bfloat16, torch.float16) else 4

    def linear(name, count, inputs, outputs):
        operands = tokens * inputs + inputs * outputs + tokens * outputs
        return name, 3 * count, 2 * tokens * inputs * outputs, operands * size

    return [
        linear("c_attn", L, C, 3 * C),
        linear("attention's c_proj", L, C, C),
        linear("c_fc", L, C, 4 * C),
        linear("mlp's c_proj", L, 4 * C, C),
        linear("lm_head", 1, C, VOCABULARY),
        ("attention", L, 6 * C * (T + 1) * tokens, 12 * tokens * C * size),
        ("optimizer", 1, 0, 7 * 4 * config.parameters()),
    ]


def floor_ms(config, batch_size, seq_len, precision, ceilings):
    """Return the milliseconds of a step whose parts run in turn, each at its ceiling; None where
    the precision has no ceiling here.
    """
    if precision not in ceilings["matmul_tflops"]:
        return None
    flop_s = ceilings["matmul_tflops"][precision] * 1e12
    bytes_s = ceilings["bandwidth_gb_s"] * 1e9
    work = parts(config, batch_size, seq_len, precision)
    return 1e3 * sum(n * max(flop / flop_s, size / bytes_s) for _, n, flop, size in work)


def describe(args, flops_per_unit=None):
    """Return the limits of a run for its record, a dict.

    flops_per_token; precision of the matrix products or None; datasheet_tflops of it or None;
    ceilings, measured, or None; with them floor_ms, the modelled floor, or None.
    args: its Settings. flops_per_unit: of a model that is not GPT, or None.
    """
    precision = precision_of(args.needs)
    ceilings = measured_ceilings.ceilings(args.hardware)
    datasheet = datasheets.named(args.hardware.name)
    peak = datasheet.peak(precision) if datasheet and precision else None
    gpt = args.config is not None
    limits = {
        "flops_per_token": flops_per_token(args.config, args.seq_len) if gpt else flops_per_unit,
        "precision": precision,
        "datasheet_tflops": peak or None,
        "ceilings": ceilings,
    }
    if ceilings and gpt:
        shape = args.config, args.batch_size, args.seq_len
        limits["floor_ms"] = floor_ms(*shape, precision, ceilings)
    return limits
