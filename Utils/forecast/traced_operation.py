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
    passed = list(zip(schema.arguments, args, strict=False))
    passed += [
        (argument, kwargs[argument.name])
        for argument in schema.arguments
        if argument.name in kwargs
    ]
    reads = []
    writes = []
    lists = 0
    for index, (argument, value) in enumerate(passed):
        tensors_here = tensors(value)
        written = argument.alias_info is not None and argument.alias_info.is_write
        if not (written and index == 0 and name in WRITE_ONLY):
            reads += tensors_here
        if written and not (index == 1 and name.startswith("_fused_adam")):  # the gradients
            writes += tensors_here
        lists += len(tensors_here) if isinstance(value, list | tuple) else 0
    if not schema.is_mutable:
        writes = tensors(result)
    lists = lists if name.startswith(("_foreach", "_fused")) else 0
    host = LIST if lists else EAGER
    name = "copy" if name == "copy_" else name
    causal = any(argument.name == "is_causal" and value is True for argument, value in passed)
    return Operation(name, tuple(reads), tuple(writes), host=host, lists=lists, causal=causal)


def launches(tracker):
    """Return a stand-in for the launch of a Triton kernel, which notes its tensors."""

    def launched(kernel, *args, **options):
        touched = tensors(args)
        tracker.note(Operation(kernel.__name__, touched, touched, host=COMPILED))

    return launched
