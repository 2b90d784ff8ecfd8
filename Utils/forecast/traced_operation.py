"""Operations as torch dispatches or traces them, as values that need no torch."""

import torch
from torch.utils._pytree import tree_leaves

from Utils.forecast.kernel_work import COMPILED, EAGER, LIST, VIEW, Operation, Tensor


def tensors(values):
    """Return the Tensors among arguments or results."""
    return tuple(_tensor(value) for value in tree_leaves(values) if isinstance(value, torch.Tensor))


def _tensor(value):
    strides = value.stride()
    shape = tuple(int(n) if step else 1 for n, step in zip(value.shape, strides, strict=True))
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
    host, name = LIST if lists else EAGER, "copy" if name == "copy_" else name
    causal = any(one.name == "is_causal" and value is True for one, value in given)
    return Operation(name, tuple(reads), tuple(writes), host=host, lists=lists, causal=causal)


def launches(tracker):
    """Return a stand-in for the launch of a Triton kernel, which notes its tensors."""

    def launched(kernel, *args, **options):
        found = tensors(args)
        tracker.note(Operation(kernel.__name__, found, found, host=COMPILED))

    return launched
