"""The work of a recorded step: its kernels with their FLOP and bytes, at any batch size.

A step is a sequence of operations, each with the shapes and types of its tensors. An eager
operation is one kernel, or several by `KERNELS`; `compiled_graph` makes the kernels of a graph.
"""

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from tools.forecast.kernel_kinds import operator_kind

OPERATORS = tomllib.loads(Path(__file__).with_name("operators.toml").read_text())

# Families of kernels, each with a rule for its time.
NONE, MEMORY, REDUCTION, MATMUL, ATTENTION, OPTIMIZER, HOST = range(7)
UPDATE = 2  # index of a phase in fake_run.PHASES
# How a kernel is started, which decides the host's time for it.
EAGER, COMPILED, VIEW, LIST = range(4)
# Kernels after which the host waits for the device
WAIT_FOR_UPDATE = 1
WAIT_FOR_LOSS = 2

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
FUSED = {"reduction": "normalization", "pointwise": "elementwise"}  # kinds of fused kernels


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
    phase: int = 0  # index in fake_run.PHASES
    host: int = EAGER  # or COMPILED, VIEW, LIST
    precision: str = "float32"  # or "tf32": precision of float32 products
    lists: int = 0  # number of tensors in its lists, if it updates many at once
    causal: bool = False
    passes: int = 1  # times that it reads its inputs


def tensors_in(values):
    """Return the Tensors among arguments or results of torch."""
    return tuple(_tensor(value) for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _tensor(value):
    strides = value.stride()
    shape = tuple(int(n) if step else 1 for n, step in zip(value.shape, strides, strict=True))
    transposed = len(shape) > 1 and strides[-1] != 1 and strides[-2] == 1
    return Tensor(shape, str(value.dtype).removeprefix("torch."), transposed)


def operation_of(function, args, kwargs, result):
    """Return the Operation of a call to ATen, as torch dispatches or traces it."""
    if function.is_view:
        return Operation("view", (), (), host=VIEW)

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

    host = LIST if lists else EAGER
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


FIELDS = [  # the values that decide the time of a kernel
    "family",  # MEMORY, MATMUL, ...
    "host",  # EAGER, COMPILED, VIEW or LIST
    "flop",
    "traffic",  # bytes read and written
    "tensor",  # bytes of the largest tensor
    "type",  # index in TYPES
    "m",  # of `b` products: (m, k) by (k, n)
    "n",
    "k",
    "b",
    "aligned",  # rows are multiples of 16 bytes
    "launches",
    "lists",
    "phase",
    "backward",
    "causal",
    "copies",  # bytes of copies that Inductor adds
    "waits",  # 0, WAIT_FOR_UPDATE or WAIT_FOR_LOSS
    "kind",
]
TYPES = ("float32", "tf32", "bfloat16", "float16", "float8")


@dataclass(frozen=True)
class StepKernels:
    """The distinct kernels of a step with their FIELDS, and the order in which they run."""

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

    columns = [np.array([row[name] for row in rows]) for name in FIELDS]
    foreign = any("::" in op.name or op.name == "_int_mm" for op in work.operations)
    return StepKernels(np.rec.fromarrays(columns, names=FIELDS), np.array(work.order), foreign)


def kernel(op):
    """Return FIELDS of an operation, a dict."""
    read_bytes = sum(t.nbytes for t in op.reads)
    written_bytes = sum(t.nbytes for t in op.writes)
    times_read, times_written = OPERATORS["passes"].get(op.name, (op.passes, 1))
    kind = FUSED.get(op.name) or operator_kind(f"aten::{op.name}") or "other"

    # A kernel that moves memory, unless a family below has other values
    row = dict.fromkeys(FIELDS, 0) | {
        "family": MEMORY,
        "host": op.host,
        "traffic": times_read * read_bytes + times_written * written_bytes,
        "tensor": max((t.nbytes for t in op.reads + op.writes), default=0),
        "aligned": True,
        "launches": KERNELS.get(op.name, 1),
        "lists": op.lists,
        "phase": op.phase,
        "kind": "optimizer" if op.phase == UPDATE else kind,
        "m": 1,
        "n": 1,
        "k": 1,
        "b": 1,
    }

    if op.host == VIEW or op.name in OPERATORS["without_work"]:
        row |= {"family": NONE, "host": VIEW, "traffic": 0, "launches": 0}
        if op.name == "_local_scalar_dense" and op.phase != UPDATE:
            row |= {"family": HOST, "waits": WAIT_FOR_LOSS, "kind": "idle"}
    elif op.name in MATMULS:
        row |= _product(op)
    elif "attention" in op.name:
        row |= _attention(op)
    elif op.lists or op.name.startswith(("_fused_adam", "optimizer_update")):
        numbers = sum(t.numel for t in op.writes)
        row |= {"family": OPTIMIZER, "launches": 1 + numbers // (320 * 65536)}
        if op.name.startswith("optimizer_update"):  # bitsandbytes 0.50 waits after each of them
            row["waits"] = WAIT_FOR_UPDATE
    elif op.name in OPERATORS["reductions"]:
        row["family"] = REDUCTION
    return row


def _type(op, tensor):
    name = op.precision if tensor.dtype == "float32" else tensor.dtype.split("_")[0]
    return TYPES.index(name) if name in TYPES else 0


def _product(op):
    """Return the fields of a matrix product."""
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
    compiled = op.host == COMPILED
    copied_bytes = sum(t.nbytes for t in unaligned if t in (a, b))

    return {
        "family": MATMUL,
        "type": _type(op, a),
        "flop": 2 * batch * m * n * k,
        "m": m,
        "n": n,
        "k": k,
        "b": batch,
        "aligned": compiled or not unaligned,
        "copies": 2 * copied_bytes if compiled else 0,
    }


def _attention(op):
    """Return the fields of attention. Backward takes five products, as scores are recomputed."""
    backward = op.name.endswith("backward")
    q, k = [t for t in op.reads if len(t.shape) == 4][backward : backward + 2]
    B, heads, T, head_dim = q.shape
    flop = 4 * B * heads * T * k.shape[2] * head_dim * (2.5 if backward else 1)

    return {
        "family": ATTENTION,
        "type": _type(op, q),
        "flop": flop / 2 if op.causal else flop,
        "m": T,
        "n": k.shape[2],
        "k": head_dim,
        "b": B * heads,
        "backward": backward,
        "causal": op.causal,
    }
