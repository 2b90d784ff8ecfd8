"""Operators that are matrix products, by type."""

import re

import torch
from torch.utils._pytree import tree_leaves

PRODUCT = re.compile("mm|mv|dot|conv|rnn|attention|linear")
CONVOLUTION = "float32 of convolutions"  # not set by torch.set_float32_matmul_precision


def product_type(operator, args):
    """Return the type of a matrix product, by its first operand, or None for another operator."""
    name = operator._schema.name
    is_library = not name.startswith(("aten::", "prims::", "prim::"))
    if not is_library and not PRODUCT.search(name.removeprefix("aten::")):
        return None
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    types = [
        tensor.dtype for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()
    ]

    if not types:
        return None
    if types[0] != torch.float32:
        return str(types[0]).removeprefix("torch.")
    if "conv" in name:
        return CONVOLUTION
    backend = torch.backends.mkldnn if tensors[0].is_cpu else torch.backends.cuda
    return "tf32" if backend.matmul.fp32_precision in ("tf32", "bf16") else "float32"
