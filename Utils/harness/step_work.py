"""The work of a training step, and its modelled floor."""

import contextlib
import json
from functools import partial

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from Utils.base import files, paths
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.device import datasheets, measured_ceilings
from Utils.device.measured_ceilings import PRECISIONS
from Utils.harness import batch_units
from Utils.model import GPT
from Utils.scripts import bases

MIXED = {"float8"}  # needs of scripts with products of several types: no single ceiling applies


def precision_of(needs):
    """Return the precision of a script's matrix products, by name; None for several.

    The last of the needs counts, as autocast overrides TF32.
    """
    if MIXED.intersection(needs):
        return None
    return ["float32", *(need for need in needs if need in PRECISIONS)][-1]


def flops(model, *args, **kwargs):
    """Return the floating-point operations of forward and backward, counted by torch."""
    with FlopCounterMode(display=False) as counter:
        outputs = model(*args, **kwargs)
        outputs = getattr(outputs, "loss", outputs)
        sum(t.float().sum() for t in batch_units.tensors(outputs) if t.requires_grad).backward()
    return counter.get_total_flops()


def flops_per_token(config, seq_len):
    """Return the floating-point operations of GPT per token.

    They are counted on the meta device, with the full scores of attention, and equal
    6 N + 12 n_layer n_embd T, with N the weights of all matrix products, including the head.
    """

    def full(q, k, v):
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    with torch.device("meta"):
        model = GPT(config, full, VOCABULARY, loss=torch.nn.functional.cross_entropy)
        idx = torch.zeros(1, seq_len, dtype=torch.long)
    return flops(model, idx, idx) // seq_len


class FirstCall:
    """The arguments of the first call of a model that is not GPT, to repeat it after the run.

    A compiled model is called through its wrapper, so the hook is no part of a graph.
    """

    def __init__(self, model):
        self.model, self.inputs = model, None
        if isinstance(model, torch.nn.Module) and not getattr(model, "_compiled_call_impl", None):
            self.hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, model, args, kwargs):
        self.inputs = tree_map(_without_values, (args, kwargs))
        self.hook.remove()

    def flops(self):
        """Return the operations of a repeated call, or None where they cannot be counted."""
        if self.inputs is None:
            return None
        args, kwargs = tree_map(lambda x: x() if isinstance(x, partial) else x, self.inputs)
        try:
            return flops(getattr(self.model, "_orig_mod", self.model), *args, **kwargs) or None
        except Exception:  # of the user's model, on zeros
            return None


def _without_values(value):
    """Return what makes zeros like a tensor, as the tensor would take memory during the run."""
    if isinstance(value, torch.Tensor):
        return partial(torch.zeros, value.shape, dtype=value.dtype, device=value.device)
    return value


def flops_per_unit(args, first_call):
    """Return the operations per unit of a step of a model that is not GPT, or None.

    Counted once for each version of a base and shape, in its plain script: kernels that torch does
    not know, as those of a compiled model, would be left out.
    """
    weights = sum(p.numel() for p in first_call.model.parameters())
    name = f"{args.base}-{args.commit}-{weights}-{args.batch_size}x{args.seq_len}.json"
    path = paths.CACHE / "bases" / "flops" / name
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    counted = first_call.flops()
    rate = counted and counted / (args.batch_size * args.seq_len)
    if args.technique == args.base:
        with contextlib.suppress(UserError):
            files.write_json(path, rate)
    return rate


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
    """Return the milliseconds of a step whose parts run in turn, each at its ceiling.

    None where the precision has no ceiling here.
    """
    if precision not in ceilings["matmul_tflops"]:
        return None
    flop_s = ceilings["matmul_tflops"][precision] * 1e12
    bytes_s = ceilings["bandwidth_gb_s"] * 1e9
    work = parts(config, batch_size, seq_len, precision)
    return 1e3 * sum(n * max(flop / flop_s, size / bytes_s) for _, n, flop, size in work)


def describe(args, flops_per_unit=None):
    """Return the limits of a run for its record, a dict.

    args: its Settings. flops_per_unit: of a model that is not GPT, or None.

    flops_per_token; precision of the matrix products or None; datasheet_tflops of it or None;
    ceilings, measured, or None; with them floor_ms, the modelled floor, or None.
    """
    precision = precision_of(args.needs)
    ceilings = measured_ceilings.ceilings(args.hardware)
    datasheet = datasheets.named(args.hardware.name)
    peak = datasheet.peak(precision) if datasheet and precision else None
    gpt = bases.OWN_MODEL not in args.owns
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
