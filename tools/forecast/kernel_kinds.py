"""Kinds of work, and the kind of an operator or a kernel by its name: kernel_kinds.toml."""

import re

from Utils.base import files

TABLES = files.tables_beside(__file__, "kernel_kinds.toml")
KINDS = TABLES["kinds"]


def _patterns(table):
    """Return the regular expressions of a table, without their line breaks."""
    return {name: "".join(pattern.split()) for name, pattern in TABLES[table].items()}


OPERATORS = _patterns("operators")
KERNELS = _patterns("kernels")
PART_PATTERNS = _patterns("parts")
NAME_PATTERNS = _patterns("names")
WITH_CHILDREN = rf"{OPERATORS['attention']}|::embedding"  # with all that they call


def operator_kind(name):
    """Return the kind of an operator or of Inductor's kernel by its name, "other" if unknown.

    None if it computes nothing, or if it is a range, a region or a node of autograd.
    """
    if re.match(r"graph_\d+_|cpp_|triton_", name):
        return _fused_kind(name)
    if not re.match(r"(?!autograd::|torch::autograd::)\w+::|(nccl|gloo|mpi):", name):
        return None

    for kind, pattern in OPERATORS.items():
        if re.search(pattern, name):
            return kind
    return None if re.search(NAME_PATTERNS["views"], name) else "other"


def _fused_kind(name):
    """Return the kind of Inductor's kernel from its fused operators, which its name lists.

    The name of a product from a template lists at most its shape.
    """
    if "flex_attention" in name:
        return "attention"
    if re.match(r"graph_\d+_(?!cpp_fused)|cpp_(?!fused)|triton_(tem|mm|bmm)_", name):
        return "matmul"

    words = re.sub(r"^(graph_\d+_)?(cpp|triton_[a-z]+)_(fused_)?|_\d+$", "", name)
    if "embedding_dense_backward" in words:
        return "copies"  # it writes the table; all other fused operators are smaller
    if name.startswith(("triton_red_", "triton_per_")) or re.search(
        NAME_PATTERNS["reductions"], words
    ):
        return "normalization"
    return "elementwise" if re.sub(NAME_PATTERNS["moves"], "", words).strip("_") else "copies"


def kernel_kind(name):
    """Return the kind of a GPU's kernel by its name, or "other"."""
    if name.startswith("triton_"):
        return _fused_kind(name)

    for kind, pattern in KERNELS.items():
        if re.search(pattern, name, re.I):
            return kind
    return "other"
