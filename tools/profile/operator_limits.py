"""The least time of an operator at the measured ceilings, and what bounds a kind of work."""

import re
from math import nan, prod

import torch
from torch.utils.flop_counter import sdpa_backward_flop, sdpa_flop

BYTES = {  # size of an element by its C++ type
    "double": 8,
    "long int": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
}
PRECISIONS = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}
FACTORS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1}  # index of the first
SCATTERED = r"index|gather|scatter|embedding|select_backward|slice_backward|cat|stack|sort"
REDUCED = r"^(sum|mean|nll_loss\w*|any|all|amax|norm)$"  # operators with small results
KNOWN = 0.8  # share of a kind's time with known work, below which there is no share of the ceiling
LITTLE_ARITHMETIC = ("normalization", "elementwise", "optimizer", "copies")  # for all shapes


def limits(kind, tasks, total_us):
    """Return (share of the ceiling, what bounds a kind), each None if unknown."""
    with_work = tasks[tasks.compute_us.notna()]
    if with_work.us.sum() < KNOWN * total_us:
        return None, "memory" if kind in LITTLE_ARITHMETIC else None
    least_us = with_work[["compute_us", "memory_us"]].max(axis=1)
    compute_us = least_us[with_work.compute_us > with_work.memory_us].sum()
    bound = "compute" if compute_us > least_us.sum() / 2 else "memory"
    return least_us.sum() / with_work.us.sum(), bound


def label(work):
    """Return an operator's name with shapes of its first tensors, "aten::mm 64x768 768x3072"."""
    shapes = [shape for shape, _ in work.operands if shape]
    first = FACTORS.get(work.name.split("::")[-1], 0)
    shown = ("x".join(map(str, shape)) for shape in shapes[first : first + 2])
    return " ".join([work.name, *shown])


def least_us(work, needs, ceilings):
    """Return (microseconds of arithmetic, of memory) of an operator at the ceilings.

    Those of arithmetic are NaN if shapes or ceilings are unknown. Each tensor is read once. The
    result is written once, and assumed to be as large as the largest tensor if it is not a product.
    needs: with "tf32" float32 products are TF32.
    """
    unknown = (nan, nan)
    operands = work.operands
    if not operands or not ceilings:
        return unknown

    # Arithmetic in FLOP, and bytes that are moved.
    name = work.name.split("::")[-1]
    first = FACTORS.get(name, 0)
    dtype = operands[first][1]
    shapes = [shape for shape, _ in operands]
    sizes = [prod(shape) * BYTES[dtype] for shape, dtype in operands]
    flop = _attention_flop(name, shapes, work.inputs)
    moved_bytes = sum(sizes) + max(sizes)
    if name in FACTORS:
        last = first + 2  # after it may come the tensor of the result
        left, right = shapes[first:last]
        flop = 2 * prod(left) * right[-1]
        moved_bytes = sum(sizes[:last]) + prod(left[:-1]) * right[-1] * BYTES[dtype]
    elif not flop:
        if work.kind in ("other", "matmul") or re.search(SCATTERED, name):
            return unknown
        if name.endswith("_") or name.startswith("triton_") or re.search(REDUCED, name):
            moved_bytes = sum(sizes)

    # Both at the ceilings.
    memory_us = moved_bytes / ceilings["bandwidth_gb_s"] / 1e3
    if not flop:
        return 0.0, memory_us
    precision = PRECISIONS.get(dtype)
    if precision == "float32" and "tf32" in needs:
        precision = "tf32"
    tflops = ceilings["matmul_tflops"].get(precision)
    return (flop / tflops / 1e6, memory_us) if tflops else unknown


def _attention_flop(name, shapes, inputs):
    """Return the FLOP of attention by torch's flop counter, 0 for other operators, NaN if unknown.

    Causal attention counts half of the scores. The formula is that of the operators on a GPU, as
    torch has none for those on a CPU.
    """
    if "scaled_dot_product" not in name:
        return 0
    try:
        arguments = getattr(torch.ops.aten, name).default._schema.arguments
        index = [argument.name for argument in arguments].index("is_causal")
        share = 0.5 if inputs[index] == "True" else 1.0
        formula = sdpa_backward_flop if "backward" in name else sdpa_flop
        return share * formula(*shapes)
    # Shapes that are broadcast or missing, or an operator that is not torch's
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        return nan
