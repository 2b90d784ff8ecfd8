"""The work of a training step, and its modelled floor."""

from typing import NamedTuple

import torch

from Utils.base.gpt2_sizes import VOCABULARY, GPTConfig
from Utils.device import datasheets, measured_ceilings
from Utils.harness.settings import Settings

MIXED = {"float8", "int8"}  # needs of scripts with products of several types: no single ceiling


class StepPart(NamedTuple):
    """Work of a training step that occurs `count` times."""

    name: str
    count: int
    flop: int
    size: int  # bytes that are read and written


def precision_of(needs: tuple[str, ...]) -> str | None:
    """Return the precision of a script's matrix products, by name; None for several.

    The last of the needs counts, as autocast overrides TF32.
    """
    if MIXED.intersection(needs):
        return None
    return ["float32", *(need for need in needs if need in measured_ceilings.PRECISIONS)][-1]


def flops_per_token(config: GPTConfig, seq_len: int) -> int:
    """Return the floating-point operations of GPT per token, with the full scores of attention.

    6 N + 12 n_layer n_embd T, with N the weights of all matrix products, including the head.
    """
    L, C = config.n_layer, config.n_embd
    weights = 12 * L * C**2 + VOCABULARY * C
    return 6 * weights + 12 * L * C * seq_len


def step_parts(
    config: GPTConfig, batch_size: int, seq_len: int, precision: str | None
) -> list[StepPart]:
    """Return the unavoidable work of a training step.

    Each of the three products of a linear layer reads its operands and writes its result once.
    Attention reads q, k, v and writes its mix; scores stay on the chip, and their masked half is
    not computed. AdamW reads weights, gradients and two moments, and writes three of them back, in
    float32. Element-wise operations are assumed to be fused into their neighbours.
    """
    L, C, T = config.n_layer, config.n_embd, seq_len
    tokens = batch_size * T
    size = measured_ceilings.PRECISIONS.get(precision, torch.float32).itemsize

    def linear(name, count, inputs, outputs):
        operands = tokens * inputs + inputs * outputs + tokens * outputs
        return StepPart(name, 3 * count, 2 * tokens * inputs * outputs, operands * size)

    return [
        linear("c_attn", L, C, 3 * C),
        linear("attention's c_proj", L, C, C),
        linear("c_fc", L, C, 4 * C),
        linear("mlp's c_proj", L, 4 * C, C),
        linear("lm_head", 1, C, VOCABULARY),
        StepPart("attention", L, 6 * C * (T + 1) * tokens, 12 * tokens * C * size),
        StepPart("optimizer", 1, 0, 7 * 4 * config.parameters()),
    ]


def floor_ms(
    config: GPTConfig, batch_size: int, seq_len: int, precision: str | None, ceilings: dict
) -> float | None:
    """Return the milliseconds of a step whose parts run one after the other, each at its ceiling.

    None if the precision has no ceiling here.
    """
    if precision not in ceilings["matmul_tflops"]:
        return None
    flop_s = ceilings["matmul_tflops"][precision] * 1e12
    bytes_s = ceilings["bandwidth_gb_s"] * 1e9
    work = step_parts(config, batch_size, seq_len, precision)
    return 1e3 * sum(n * max(flop / flop_s, size / bytes_s) for _, n, flop, size in work)


def limits(args: Settings, flops_per_unit: float | None = None) -> dict:
    """Return the limits of a run for its record.

    flops_per_token: floating-point operations per unit of the batch.
    precision: that of the matrix products, or None.
    datasheet_tflops: the device's peak at that precision, or None.
    ceilings: the measured ones, or None.
    floor_ms: the modelled floor of GPT, or None; absent without ceilings.

    flops_per_unit: those of a model that is not GPT, or None.
    """
    precision = precision_of(args.needs)
    ceilings = measured_ceilings.ceilings(args.hardware)
    datasheet = datasheets.datasheet_for(args.hardware.name)
    peak = datasheet.peak(precision) if datasheet and precision else None
    gpt = args.config is not None

    limits = {
        "flops_per_token": flops_per_token(args.config, args.seq_len) if gpt else flops_per_unit,
        "precision": precision,
        "datasheet_tflops": peak or None,
        "ceilings": ceilings,
    }
    if ceilings and gpt:
        limits["floor_ms"] = floor_ms(
            args.config, args.batch_size, args.seq_len, precision, ceilings
        )
    return limits
