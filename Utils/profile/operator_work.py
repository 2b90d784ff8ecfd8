"""The least time that an operator can take, from the shapes of its operands."""

import math
import re

from Utils.device.kernel_kinds import operator_kind

BYTES = dict.fromkeys(("double", "long int", "long"), 8)
BYTES |= dict.fromkeys(("float", "int"), 4) | dict.fromkeys(("c10::BFloat16", "c10::Half"), 2)
BYTES |= dict.fromkeys(("bool", "unsigned char", "signed char"), 1)
BYTES |= dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1)
PRECISIONS = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}
FACTORS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1}  # where the first stands
SCATTERED = r"index|gather|scatter|embedding|select_backward|slice_backward|cat|stack|sort"
REDUCED = r"^(sum|mean|nll_loss\w*|any|all|amax|norm)$"  # whose results are small


def tensors(event, dtypes):
    """Return (shape, dtype) of an operator's tensors; none if it takes lists of them."""
    if "TensorList" in dtypes:
        return []
    pairs = zip(event.input_shapes, dtypes, strict=False)
    return [(shape, dtype) for shape, dtype in pairs if dtype in BYTES]


def label(operator, operands):
    """Return an operator's name with its first tensors' shapes, as "aten::mm 64x768 768x3072"."""
    shapes = [shape for shape, _ in operands if shape]
    first = FACTORS.get(operator.split("::")[-1], 0)
    shown = ("x".join(map(str, shape)) for shape in shapes[first : first + 2])
    return " ".join([operator, *shown])


def least_us(operator, operands, needs, ceilings):
    """Return the microseconds of an operator's arithmetic and of its memory at the ceilings, NaN
    where shapes or ceilings are unknown.

    needs: those of the script; with "tf32" its float32 products are TF32.
    """
    flop, size, dtype = _work(operator, operands) if operands and ceilings else (0, 0, "")
    precision = PRECISIONS.get(dtype)
    if precision == "float32" and "tf32" in needs:
        precision = "tf32"
    tflops = ceilings["matmul_tflops"].get(precision) if flop else 1.0
    if not size or not tflops:
        return math.nan, math.nan
    return flop / tflops / 1e6, size / ceilings["bandwidth_gb_s"] / 1e3


def _work(operator, operands):
    """Return FLOP, the bytes that have to move, and the type of the factors. Each tensor is read
    once, and the result, taken to be as large as the largest of them, written once."""
    name = operator.split("::")[-1]
    sizes = [math.prod(shape) * BYTES[dtype] for shape, dtype in operands]
    if name in FACTORS:
        first = FACTORS[name]
        (left_shape, dtype), (right_shape, _) = operands[first : first + 2]
        result_size = math.prod(left_shape[:-1]) * right_shape[-1]
        return 2 * result_size * left_shape[-1], sum(sizes) + result_size * BYTES[dtype], dtype
    if "scaled_dot_product" in name:
        backward = "backward" in name
        (*heads, T, head_dim), dtype = operands[1 if backward else 0]
        products = 4 if backward else 2
        moved = 8 if backward else 4
        # causal: the scores of half of all pairs
        flop = products * math.prod(heads) * T * (T + 1) * head_dim
        return flop, moved * math.prod(heads) * T * head_dim * BYTES[dtype], dtype
    if operator_kind(operator) in (None, "other", "matmul") or re.search(SCATTERED, name):
        return 0, 0, ""
    in_place = name.endswith("_") or name.startswith("triton_")
    result_bytes = 0 if in_place or re.search(REDUCED, name) else max(sizes)
    return 0, sum(sizes) + result_bytes, ""
