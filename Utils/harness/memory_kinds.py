"""Memory of a run by kind, and the parameters that an optimizer has updated."""

import itertools

import torch

from Utils.base.units import MIB


class GradientWatch:
    """Peak bytes of gradients within a `with` block, one training step: measured whenever one is
    complete, so freeing each early lowers the peak.
    """

    def __init__(self, model):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.peak = None

    def __enter__(self):
        self.peak = 0
        self.hooks = [p.register_post_accumulate_grad_hook(self._measure) for p in self.parameters]

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()

    def _measure(self, complete):
        kept = (p.grad for p in self.parameters if p is not complete and p.grad is not None)
        held = sum(_local(grad).nbytes for grad in kept)
        self.peak = max(self.peak, _local(complete).nbytes + held)


def _local(tensor):
    """Return this rank's shard of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def memory(device, model, optimizer, gradients):
    """Return peak memory by kind in MiB, a dict.

    peak_mib; reserved_mib, the peak held by torch's allocator (None on a CPU); weights_mib with
    buffers; gradients_mib, their peak (None where no step was watched); optimizer_state_mib;
    rest_mib, the remainder of the peak: activations, workspace and, on a CPU, libraries. Gradients
    replace activations during the backward, so activations alone can exceed the rest.
    off_device_mib: optimizer state kept off the device, no part of the peak.

    optimizer: an optimizer, several, or None. gradients: bytes or None.
    """
    states = [state for member in optimizers(optimizer) for state in member.state.values()]
    values = itertools.chain.from_iterable(state.values() for state in states)
    state = [value for value in values if isinstance(value, torch.Tensor)]
    devices = {p.device for p in model.parameters()} or {torch.device("cpu")}
    peak = device.peak_memory_mib()
    parts = {
        "weights_mib": _size([*model.parameters(), *model.buffers()]) / MIB,
        "gradients_mib": None if gradients is None else gradients / MIB,
        "optimizer_state_mib": _size(value for value in state if value.device in devices) / MIB,
    }
    remainder = max(0.0, peak - sum(filter(None, parts.values())))
    kinds = {
        "peak_mib": peak,
        "reserved_mib": device.reserved_memory_mib(),
        **parts,
        "rest_mib": None if gradients is None else remainder,
        "off_device_mib": _size(value for value in state if value.device not in devices) / MIB,
    }
    return {kind: size if size is None else round(size, 1) for kind, size in kinds.items()}


def optimizers(optimizer):
    """Return the optimizers in an optimizer, a list, a dict or None, as a list."""
    if optimizer is None:
        return []
    if hasattr(optimizer, "state"):
        return [getattr(optimizer, "optim", optimizer)]  # ZeroRedundancyOptimizer's is inside
    return list(optimizer.values() if isinstance(optimizer, dict) else optimizer)


def _size(tensors):
    """Return the bytes of tensors, counting shared storage once."""
    storages = (_local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def updated(model, optimizer):
    """Return the numbers of the parameters that an optimizer of this rank has updated. Copies,
    which it may update in their place, are in the model's order.
    """
    stepped = [id(p) for member in optimizers(optimizer) for p in member.state]
    numbers = [number for number, p in enumerate(model.parameters()) if id(p) in stepped]
    return numbers or list(range(len(stepped)))


def updates(optimizer):
    """Return how many updates an optimizer has made: fewer than steps after an overflow."""
    states = [state for member in optimizers(optimizer) for state in member.state.values()]
    return max((int(state["step"]) for state in states if "step" in state), default=0)


def training(model, optimizer, updated_by_rank=None):
    """Return the number of parameters, the number updated, and the optimizer's class: a dict.

    updated_by_rank: result of `updated` on each rank. Parameters without effect on the loss are
    never updated.
    """
    updated_by_rank = updated_by_rank or [updated(model, optimizer)]
    sizes = [p.numel() for p in model.parameters()]
    types = map(type, optimizers(optimizer))
    return {
        "parameters": sum(sizes),
        "updated_parameters": sum(sizes[number] for number in set().union(*updated_by_rank)),
        "optimizer": " + ".join(sorted({f"{kind.__module__}.{kind.__name__}" for kind in types})),
    }
