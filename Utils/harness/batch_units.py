"""The size of a batch, whatever it is made of, in the unit of a script."""

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
        yield from tensors(list(batch.values()))
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
    candidates = [tensor for tensor in tensors(batch) if tensor.dim()]
    if unit != "tokens":
        return (len(candidates[0]) if candidates else 0), 1
    integers = [t for t in candidates if not t.is_floating_point()]
    for tensor in [*integers, *candidates]:
        if tensor.dim() > 1:
            return tuple(tensor.shape[:2])
    packed = integers or candidates
    return (1, len(packed[0])) if packed else (0, 1)


def outline(batch):
    """Return the shapes and types of a batch as plain values; None of what is no tensor."""
    if isinstance(batch, torch.Tensor):
        return {"shape": list(batch.shape), "dtype": str(batch.dtype).removeprefix("torch.")}
    if isinstance(batch, Mapping):
        return {"mapping": {str(key): outline(value) for key, value in batch.items()}}
    if isinstance(batch, list | tuple):
        return {type(batch).__name__: [outline(value) for value in batch]}
    return None


class OwnBatches:
    """The batches of a script with data of its own: their sizes, and the outline of the first."""

    def __init__(self, args):
        self.args = args
        self.sizes = []
        self.outline = None

    def add(self, batch):
        """Note the size of a step's batch. Raises UserError where there is none."""
        if batch is None:
            steps = len(self.sizes)
            raise UserError(f"the batches end after {steps} steps and cannot begin again")
        if not self.sizes:
            self.outline = outline(batch)
        self.sizes.append(size(batch, self.args.unit))

    def settle(self):
        """Set the batch of the settings to what it was in the usual step."""
        args, sizes = self.args, self.sizes
        if not any(number for number, _ in sizes):
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

    def remember(self):
        """Keep the outline of a base's batch, for a forecast that loads no data."""
        args = self.args
        if not self.outline or args.technique != args.base:
            return
        facts = {"batch_size": args.batch_size, "seq_len": args.seq_len, "batch": self.outline}
        with suppress(UserError):  # then there is no forecast
            files.write_json(bases.batch_file(args.base, args.version), facts)
