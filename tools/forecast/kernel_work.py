"""The work of a recorded step: its kernels with their FLOP and bytes, at any batch size.

A step is a sequence of operations, each with the shapes and types of its tensors. An eager
operation is one kernel, or several by `KERNELS`; `compiled_graph` makes the kernels of a graph.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import numpy as np
import pandas as pd
import torch
from torch.utils._pytree import tree_leaves

from Utils.base import files

OPERATORS = files.tables_beside(__file__, "operators.toml")

HAVE_RULES = {  # namespaces of operators
    "aten",
    "prims",
    "c10d",
    "_c10d_functional",
    "bitsandbytes",
    "fsdp",
    "profiler",
    "beyond",  # custom operators of the scripts, under their kernels' names
}
MATMULS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm"}
KERNELS = {"native_layer_norm_backward": 2, "embedding_dense_backward": 6, "nll_loss_backward": 2}


@dataclass(frozen=True)
class Tensor:
    """A tensor's layout."""

    shape: tuple  # an expanded dimension is 1
    dtype: str
    transposed: bool = False  # its columns are contiguous, not its rows

    @property
    def numel(self):
        return prod(self.shape)

    @property
    def nbytes(self):
        return self.numel * getattr(torch, self.dtype).itemsize


@dataclass(frozen=True)
class Operation:
    """One operation of a step."""

    name: str  # ATen's name, without its namespace
    reads: tuple  # Tensors
    writes: tuple
    in_update: bool = False  # in the optimizer
    host: str = "eager"  # or "compiled", "view", "list": how it is started
    precision: str = "float32"  # or "tf32": precision of float32 products
    lists: int = 0  # number of tensors in its lists, if it updates many at once
    causal: bool = False
    passes: int = 1  # times that it reads its inputs


def tensors_in(values):
    """Return the Tensors among arguments or results of torch."""
    return tuple(map(_tensor, filter(torch.is_tensor, tree_leaves(values))))


def _tensor(value):
    strides = value.stride()
    shape = tuple(int(n) if step else 1 for n, step in zip(value.shape, strides, strict=True))
    transposed = len(shape) > 1 and strides[-1] != 1 and strides[-2] == 1
    return Tensor(shape, str(value.dtype).removeprefix("torch."), transposed)


def operation_of(function, args, kwargs, result):
    """Return the Operation of a call to ATen, as torch dispatches or traces it."""
    if function.is_view:
        return Operation("view", (), (), host="view")

    schema = function._schema
    namespace, name = schema.name.split("::")
    if namespace not in HAVE_RULES:
        name = schema.name
    argument_names = [argument.name for argument in schema.arguments]
    passed = dict(zip(argument_names, args, strict=False)) | kwargs

    reads = []
    writes = []
    lists = 0
    for argument in schema.arguments:
        value = passed.get(argument.name)
        operands = tensors_in(value)

        if not (argument.is_write and name in OPERATORS["write_only"]):
            reads += operands

        only_marked = name.startswith("_fused_adam") and argument.name == "grads"
        if argument.is_write and not only_marked:
            writes += operands

        if isinstance(value, list | tuple) and name.startswith(("_foreach", "_fused")):
            lists += len(operands)
    if not schema.is_mutable:
        writes = tensors_in(result)

    host = "list" if lists else "eager"
    name = "copy" if name == "copy_" else name
    causal = passed.get("is_causal") is True
    return Operation(name, tuple(reads), tuple(writes), host=host, lists=lists, causal=causal)


@dataclass(eq=False)
class StepOperations:
    """Operations in order; equal ones are kept once."""

    batch: int = 1
    operations: dict = field(default_factory=dict)  # number in `order`, by Operation
    order: list = field(default_factory=list)

    def add(self, operation):
        self.order.append(self.operations.setdefault(operation, len(self.operations)))


TYPES = ("float32", "tf32", "bfloat16", "float16", "float8")


@dataclass
class Kernel:
    """The values that decide the time of a kernel."""

    host: str  # that of its Operation, as lists
    lists: int
    launches: int
    traffic: int  # bytes read and written
    tensor: int  # bytes of the largest tensor
    # The rule for its time: memory, reduction, matmul, attention, optimizer, host or none
    family: str = "memory"
    waits: str = ""  # the constant of step_time.toml that is its host's wait for the device
    flop: float = 0.0
    type: int = 0  # index in TYPES
    m: int = 1  # `b` products: (m, k) by (k, n)
    n: int = 1
    k: int = 1
    b: int = 1
    aligned: bool = True  # rows are multiples of 16 bytes
    copies: int = 0  # bytes of copies that Inductor adds
    backward: bool = False
    causal: bool = False


@dataclass(frozen=True)
class StepKernels:
    """The distinct kernels of a step as records, and the order in which they run."""

    kernels: np.recarray
    order: np.ndarray
    foreign: bool  # a kernel has no rule for its time


@cache
def kernels_at(work, batch):
    """Return the StepKernels of Work at another batch size.

    The recorded size must be a prime that divides no other dimension.
    """

    def scaled(tensors):
        for tensor in tensors:
            shape = (n if n % work.batch else n // work.batch * batch for n in tensor.shape)
            yield replace(tensor, shape=tuple(shape))

    rows = []
    for op in work.operations:
        reads = tuple(scaled(op.reads))
        writes = tuple(scaled(op.writes))
        rows.append(kernel(replace(op, reads=reads, writes=writes)))

    foreign = any("::" in op.name or op.name == "_int_mm" for op in work.operations)
    return StepKernels(pd.DataFrame(rows).to_records(), np.array(work.order), foreign)


def kernel(op):
    """Return the Kernel of an Operation."""
    read_bytes = sum(t.nbytes for t in op.reads)
    written_bytes = sum(t.nbytes for t in op.writes)
    times_read, times_written = OPERATORS["passes"].get(op.name, (op.passes, 1))

    # A kernel that moves memory, unless it is of a family below
    row = Kernel(
        host=op.host,
        lists=op.lists,
        launches=KERNELS.get(op.name, 1),
        traffic=times_read * read_bytes + times_written * written_bytes,
        tensor=max((t.nbytes for t in op.reads + op.writes), default=0),
    )

    if op.host == "view" or op.name in OPERATORS["without_work"]:
        row = replace(row, family="none", host="view", traffic=0, launches=0)
        if op.name == "_local_scalar_dense" and not op.in_update:
            row = replace(row, family="host", waits="start")
    elif op.name in MATMULS:
        row = _product(row, op)
    elif "attention" in op.name:
        row = _attention(row, op)
    elif op.lists or op.name.startswith(("_fused_adam", "optimizer_update")):
        row.family = "optimizer"
        row.launches = 1 + sum(t.numel for t in op.writes) // (320 * 65536)
        if op.name.startswith("optimizer_update"):  # bitsandbytes 0.50 waits after each of them
            row.waits = "wait"
    elif op.name in OPERATORS["reductions"]:
        row.family = "reduction"
    return row


def _type(op, tensor):
    name = op.precision if tensor.dtype == "float32" else tensor.dtype.split("_")[0]
    return TYPES.index(name) if name in TYPES else 0


def _product(row, op):
    """Return the Kernel of a matrix product."""
    a, b = [t for t in op.reads if len(t.shape) >= 2][-2:]
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = prod(a.shape[:-2])

    # A row's length in memory decides how many numbers a load can take: 16 bytes at best.
    size = getattr(torch, a.dtype).itemsize
    unaligned = []
    for tensor in (a, b, *op.writes[:1]):
        row_length = tensor.shape[-2 if tensor.transposed else -1]
        if row_length * size % 16:
            unaligned.append(tensor)

    # Inductor copies an input into one with longer rows, and makes an output with such rows.
    compiled = op.host == "compiled"
    copied_bytes = sum(t.nbytes for t in unaligned if t in (a, b))

    return replace(
        row,
        family="matmul",
        type=_type(op, a),
        flop=2 * batch * m * n * k,
        m=m,
        n=n,
        k=k,
        b=batch,
        aligned=compiled or not unaligned,
        copies=2 * copied_bytes if compiled else 0,
    )


def _attention(row, op):
    """Return the Kernel of attention. Backward takes five products, as scores are recomputed."""
    backward = op.name.endswith("backward")
    q, k = [t for t in op.reads if len(t.shape) == 4][backward : backward + 2]
    B, heads, T, head_dim = q.shape
    flop = 4 * B * heads * T * k.shape[2] * head_dim * (2.5 if backward else 1)

    return replace(
        row,
        family="attention",
        type=_type(op, q),
        flop=flop / 2 if op.causal else flop,
        n=k.shape[2],
        backward=backward,
        causal=op.causal,
    )
