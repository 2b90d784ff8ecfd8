"""Kinds of work, and which of them an operator or a kernel is by its name.

docs/METHOD.md explains the grouping.
"""

import re

KINDS = {  # in the order in which a moment of several is given to one of them
    "matmul": "matrix products",
    "attention": "attention",
    "normalization": "normalizations, softmax, sums",
    "elementwise": "element-wise",
    "optimizer": "optimizer",
    "other": "other",
    "copies": "copies and transfers",
    "communication": "communication",
    "idle": "idle",
}
# What an operator does, by its name; the first that matches. Those that match nothing but VIEWS
# only make tensors out of others' memory, or out of none: they compute nothing.
OPERATORS = {
    "communication": r"^(c10d|_c10d_functional|nccl|gloo|mpi):",
    "optimizer": r"::(_fused_(adam|adamw|sgd|adagrad)_?|_amp_\w+|optimizer_\w+)$",
    "attention": r"scaled_dot_product|_flash_attention|_efficient_attention|_cudnn_attention",
    "matmul": r"::(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|einsum|_(scaled|int)_mm"
    r"|linear_backward|matmul_backward|_?mkl_linear|_linear_pointwise)$",
    "normalization": r"softmax|_norm\b|_norm_backward|nll_loss|cross_?entropy"
    r"|::(sum|mean|var|std|var_mean|norm|linalg_vector_norm|logsumexp|amax|amin|max|min|argmax"
    r"|argmin|cumsum|prod|all|any|sum_to_size|_unsafe_masked_\w+)$",
    "copies": r"::(copy_|_to_copy|to|clone|contiguous|cat|stack|_?index\w*|take|gather|scatter\w*"
    r"|embedding\w*|select_backward|slice_backward|repeat|roll|flip|item|_local_scalar_dense"
    r"|_?pin_memory|constant_pad_nd|_foreach_copy_?|sort|\w+_copy)$",
    "elementwise": r"::(_foreach_\w+|(fill|zero|add|sub|rsub|mul|div|pow|sqrt|rsqrt|square|exp|log"
    r"|log1p|log2|neg|abs|sign|tanh|sigmoid|erf|gelu|relu|silu|where|masked_fill|lerp|addcmul"
    r"|addcdiv|clamp|clamp_min|clamp_max|maximum|minimum|eq|ne|lt|le|gt|ge|isfinite|isnan|isinf"
    r"|logical_\w+|bitwise_\w+|reciprocal|floor|ceil|round|trunc|remainder|fmod|sin|cos|triu|tril"
    r"|dropout|native_dropout|bernoulli|normal|uniform|random|randn|rand|randint|zeros|ones|full"
    r"|zeros_like|ones_like|full_like|new_zeros|new_full|arange|threshold|floor_divide|true_divide"
    r"|_masked_scale|_masked_softmax)(_|_backward)?)$",
}
WHOLE = rf"{OPERATORS['attention']}|::embedding"  # with all that they call
VIEWS = (
    r"::(view|view_as|reshape|_reshape_alias|_unsafe_view|t|transpose|permute|as_strided|expand"
    r"|expand_as|slice|select|narrow|split\w*|chunk|unbind|unsqueeze|squeeze|flatten|unflatten"
    r"|unfold|detach|alias|empty\w*|new_empty\w*|resize\w*|set|result_type|lift_fresh|numpy_T"
    r"|resolve_conj|resolve_neg|record_stream|is_\w+|_\w*assert\w*)_?$"
)
# Kernels that no operator of the above has launched, by their names.
KERNELS = {
    "communication": r"nccl|rccl",
    "attention": r"flash|fmha|sdpa|attention",
    "matmul": r"gemm|cutlass|nvjet|xmma|wgmma|cublas|splitk|cijk_|^triton_(tem|mm|bmm)_",
    "normalization": r"softmax|layer_?norm|rms_?norm|gammabeta|reduce|nll_loss|cross_?entropy",
    "optimizer": r"multi_tensor_apply|adam|optimizer",
    "copies": r"memcpy|memset|copy|catarray|index|gather|scatter|embedding|transpose|radixsort",
    "elementwise": r"elementwise|^triton_poi_|fill|masked|philox|distribution",
}
REDUCTIONS = (
    r"softmax|norm|nll_loss|cross_entropy|(?:^|_)(?:sum|mean|amax|amin|var|logsumexp)(?=_|$)"
)
MOVES = (  # what Inductor's kernels are called after when they only move
    r"(?:^|_)(_?to_copy|clone|copy|transpose|view|permute|expand|slice|unsqueeze|squeeze|cat|split"
    r"|select|t|embedding_dense_backward|embedding|index_put|index|slice_backward|select_backward"
    r"|unsafe_view|reshape|full|zeros|empty|detach|new_zeros|constant_pad_nd|scatter_add|scatter"
    r"|lift_fresh|arange)(?=_|$)"
)
PARTS = {  # of what reduces, by the operator's name
    "loss": r"log_softmax|nll_loss|cross_?entropy",
    "softmax": r"softmax",
    "norms": r"norm",
    "sums": r"",
}


def operator_kind(name):
    """Return the kind of an operator or of Inductor's kernel by its name. None if it computes
    nothing or is a range, a region or a node of autograd; "other" if unknown."""
    if re.match(r"graph_\d+_|cpp_|triton_", name):
        return _fused_kind(name)
    if not re.match(r"(?!autograd::|torch::autograd::)\w+::|(nccl|gloo|mpi):", name):
        return None
    for kind, pattern in OPERATORS.items():
        if re.search(pattern, name):
            return kind
    return None if re.search(VIEWS, name) else "other"


def _fused_kind(name):
    """Return the kind of Inductor's kernel from its fused operators, which its name lists. Products
    from templates list at most their shape."""
    if "flex_attention" in name:
        return "attention"
    if re.match(r"graph_\d+_(?!cpp_fused)|cpp_(?!fused)|triton_(tem|mm|bmm)_", name):
        return "matmul"
    words = re.sub(r"^(graph_\d+_)?(cpp|triton_[a-z]+)_(fused_)?|_\d+$", "", name)
    if "embedding_dense_backward" in words:
        return "copies"  # it writes the whole table; whatever else is fused in is smaller
    if name.startswith(("triton_red_", "triton_per_")) or re.search(REDUCTIONS, words):
        return "normalization"
    return "elementwise" if re.sub(MOVES, "", words).strip("_") else "copies"


def kernel_kind(name):
    """Return the kind of a GPU's kernel by its name, or "other"."""
    if name.startswith("triton_") and (kind := operator_kind(name)):
        return kind
    for kind, pattern in KERNELS.items():
        if re.search(pattern, name, re.I):
            return kind
    return "other"
