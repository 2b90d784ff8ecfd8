"""The size of a batch, whatever it is made of, in the unit of a script."""

import json
from collections.abc import Mapping
from contextlib import suppress
from statistics import median

import torch

from Utils.base import files
from Utils.base.errors import UserError
from Utils.scripts import bases


def tensors(batch):
    """Yield the tensors of a batch: one, or any nest of mappings, lists and tuples of them."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)
    elif hasattr(batch, "__dict__"):
        yield from tensors(vars(batch))


def size(batch, unit):
    """Return (number, length) of a batch; their product is the number of its units.

    Tokens: the shape of its first tensor of integers with two dimensions, (B, T), or of packed ones
    with one. All else: the length of its first tensor, and 1. (0, 1) for a batch without tensors.
    """
    found = [tensor for tensor in tensors(batch) if tensor.dim()]
    if unit == "tokens":
        whole = [t for t in found if not t.is_floating_point()]
        wide = [t for t in whole if t.dim() > 1] or [t for t in found if t.dim() > 1]
        if wide:
            return tuple(wide[0].shape[:2])
        found = whole or found
        return (1, len(found[0])) if found else (0, 1)
    return (len(found[0]) if found else 0), 1


def outline(batch):
    """Return the shapes and types of a batch as plain values; None of what is no tensor."""
    if isinstance(batch, torch.Tensor):
        return {"shape": list(batch.shape), "dtype": str(batch.dtype).removeprefix("torch.")}
    if isinstance(batch, Mapping):
        return {"mapping": {str(key): outline(value) for key, value in batch.items()}}
    if isinstance(batch, list | tuple):
        return {type(batch).__name__: [outline(value) for value in batch]}
    return None


def imagined(known, number, old):
    """Return a batch of zeros of an outline, with `number` of what it has `old` of."""
    if known is None:
        return None
    if "shape" in known:
        first = [number if size == old else size for size in known["shape"][:1]]
        shape = first + known["shape"][1:]
        return torch.zeros(shape, dtype=getattr(torch, known["dtype"]))
    if "mapping" in known:
        return {key: imagined(value, number, old) for key, value in known["mapping"].items()}
    (kind, values), *_ = known.items()
    batch = [imagined(value, number, old) for value in values]
    return batch if kind == "list" else tuple(batch)


def remember(args, known):
    """Keep the outline of a base's batch, for a forecast that loads no data."""
    path = bases.batch_file(args.base, args.version)
    facts = {"batch_size": args.batch_size, "seq_len": args.seq_len, "batch": known}
    with suppress(UserError):  # then there is no forecast
        files.write_json(path, facts)


def remembered(name, version):
    """Return batch_size, seq_len and batch, an outline, of a base that has run; else None."""
    with suppress(OSError, ValueError):
        return json.loads(bases.batch_file(name, version).read_text())
    return None


def settle(args, sizes):
    """Set the batch of a script with batches of its own to what it was. sizes: of its steps."""
    if not sizes or not any(number for number, _ in sizes):
        args.notes.append(f"its batches hold no tensors, so their {args.unit} are not counted")
        return
    units = [number * length for number, length in sizes]
    args.varying = len({length for _, length in sizes}) > 1
    if min(units) != max(units):
        args.notes.append(f"{min(units)} to {max(units)} {args.unit} a step")
    usual = median(units)
    number, length = min(sizes, key=lambda size: abs(size[0] * size[1] - usual))
    if number != args.batch_size:
        args.requested_batch_size = args.batch_size = number
    args.seq_len = length
