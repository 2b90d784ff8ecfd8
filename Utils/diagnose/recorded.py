"""Operations as torch dispatches or traces them, as values that need no torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.utils._pytree import tree_leaves

from Utils.diagnose.fusion import groups
from Utils.diagnose.operations import COMPILED, EAGER, LIST, VIEW, Operation, Tensor


def tensors(values):
    """Return the Tensors among arguments or results."""
    return tuple(_tensor(value) for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _tensor(value):
    strides = value.stride()
    shape = tuple(
        int(n) if step or n == 1 else 1 for n, step in zip(value.shape, strides, strict=True)
    )
    transposed = len(shape) > 1 and strides[-1] != 1 and strides[-2] == 1
    return Tensor(shape, str(value.dtype).removeprefix("torch."), transposed)


WRITE_ONLY = {"copy_", "fill_", "zero_", "_foreach_zero_", "_foreach_copy_"}


def operation(function, args, kwargs, result):
    """Return the Operation of a call to ATen."""
    schema = function._schema
    name = schema.name.split("::")[1]
    if function.is_view:
        return Operation("view", (), (), host=VIEW)
    given = list(zip(schema.arguments, args, strict=False))
    given += [(one, kwargs[one.name]) for one in schema.arguments if one.name in kwargs]
    reads, writes, lists = [], [], 0
    for index, (argument, value) in enumerate(given):
        found = tensors(value)
        written = argument.alias_info is not None and argument.alias_info.is_write
        if not (written and index == 0 and name in WRITE_ONLY):
            reads += found
        if written and not (index == 1 and name.startswith("_fused_adam")):  # the gradients
            writes += found
        lists += len(found) if isinstance(value, list | tuple) else 0
    if not schema.is_mutable:
        writes = tensors(result)
    lists = lists if name.startswith(("_foreach", "_fused")) else 0
    return Operation(
        name.rstrip("_") if name == "copy_" else name,
        tuple(reads),
        tuple(writes),
        host=LIST if lists else EAGER,
        lists=lists,
        causal=any(one.name == "is_causal" and value is True for one, value in given),
    )


@dataclass(frozen=True)
class Rules:
    """Nodes of a graph that take no memory of their own, and functions that tell what a node is."""

    fused: set
    is_view: Callable
    is_elementwise: Callable
    is_reduction: Callable

    def is_kernel(self, node):
        """Return whether Inductor makes its kernel, as it does of a scatter into a constant."""
        known = self.is_elementwise(node) or self.is_reduction(node)
        return known or (_is_operator(node) and node.target._schema.name == "aten::scatter")

    def tensor(self, node):
        """Return the Tensor of what a node computes, or None where it is no tensor."""
        found = tensors(node.meta.get("val"))
        return found[0] if found else None


def compiled(nodes, rules):
    """Return the Operations of a graph's kernels."""
    operations = []
    for node, kernel in groups(nodes, rules):
        if kernel is None and _is_operator(node):
            args, kwargs = torch.fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda one: one.meta.get("val")
            )
            kernel = operation(node.target, args, kwargs, node.meta.get("val"))
            kernel = replace(kernel, host=COMPILED)
        if kernel is not None:
            operations.append(kernel)
    return operations


def _is_operator(node):
    return isinstance(node.target, torch._ops.OpOverload)


def launches(tracker):
    """Return a stand-in for the launch of a Triton kernel, which notes its tensors."""

    def launched(kernel, *args, **options):
        found = tensors(args)
        tracker.note(Operation(kernel.__name__, found, found, host=COMPILED))

    return launched
