"""Memory of a run by kind, and the parameters that an optimizer has updated."""

import itertools

import torch

from Utils.base.units import MIB
from Utils.device.device import Device

Optimizers = torch.optim.Optimizer | list | dict | None  # one, several, or none


class GradientWatch:
    """Peak bytes of gradients within a `with` block, which is one training step.

    All are measured whenever a gradient is complete. So freeing them early lowers the peak.
    """

    def __init__(self, model: torch.nn.Module):
        self.parameters = list(model.parameters())
        self.peak = None

    def __enter__(self):
        self.peak = 0
        self.hooks = [
            p.register_post_accumulate_grad_hook(self._measure)
            for p in self.parameters
            if p.requires_grad
        ]

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()

    def _measure(self, complete):
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if complete.grad is None:  # an earlier hook has used it, and it has the parameter's size
            gradients.append(complete)
        self.peak = max(self.peak, sum(part.nbytes for part in _parts(gradients)))


def _parts(tensors):
    """Yield the dense tensors in tensors: indices and values, or this rank's shard."""
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        is_sparse = local.layout is torch.sparse_coo
        yield from [local._indices(), local._values()] if is_sparse else [local]


def memory_by_kind(
    device: Device, model: torch.nn.Module, optimizer: Optimizers, gradients: int | None
) -> dict[str, float | None]:
    """Return peak memory by kind in MiB.

    peak_mib: the peak of tensors on a GPU, of the process on a CPU.
    reserved_mib: the peak held by torch's allocator; None on a CPU.
    weights_mib: weights and buffers.
    gradients_mib: the peak of gradients; None if no step was watched.
    optimizer_state_mib: optimizer state on the device.
    rest_mib: the remainder of the peak: activations, workspace and, on a CPU, libraries. Gradients
        replace activations during the backward, so activations alone can exceed the rest. None if
        no step was watched.
    off_device_mib: optimizer state elsewhere, which is not part of the peak.

    gradients: bytes, or None if no step was watched.
    """
    values = itertools.chain.from_iterable(state.values() for state in _states(optimizer))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    devices = {p.device for p in model.parameters()} or {torch.device("cpu")}
    peak = device.peak_memory_mib()

    kinds = {
        "weights_mib": _size([*model.parameters(), *model.buffers()]) / MIB,
        "gradients_mib": None if gradients is None else gradients / MIB,
        "optimizer_state_mib": _size(t for t in tensors if t.device in devices) / MIB,
    }
    remainder = max(0.0, peak - sum(filter(None, kinds.values())))
    sizes = {
        "peak_mib": peak,
        "reserved_mib": device.reserved_memory_mib(),
        **kinds,
        "rest_mib": None if gradients is None else remainder,
        "off_device_mib": _size(t for t in tensors if t.device not in devices) / MIB,
    }
    return {kind: size if size is None else round(size, 1) for kind, size in sizes.items()}


def optimizers(optimizer: Optimizers) -> list:
    """Return the optimizers in an optimizer, a list, a dict or None."""
    if optimizer is None:
        return []
    if hasattr(optimizer, "state"):
        return [getattr(optimizer, "optim", optimizer)]  # ZeroRedundancyOptimizer has it inside
    return list(optimizer.values() if isinstance(optimizer, dict) else optimizer)


def _states(optimizer):
    """Return the states of all parameters, dicts, in all optimizers."""
    return itertools.chain.from_iterable(member.state.values() for member in optimizers(optimizer))


def _size(tensors):
    """Return the bytes of tensors, counting shared storage once."""
    storages = (part.untyped_storage() for part in _parts(tensors))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def updated(model: torch.nn.Module, optimizer: Optimizers) -> list[int]:
    """Return the numbers of the parameters that an optimizer of this rank has updated.

    It may have updated copies instead. They are in the model's order.
    """
    states = (member.state for member in optimizers(optimizer))
    stepped = [*itertools.chain.from_iterable(states)]
    numbers = [number for number, p in enumerate(model.parameters()) if p in {*stepped}]
    return numbers or list(range(len(stepped)))


def updates(optimizer: Optimizers) -> int:
    """Return how many updates an optimizer has made: fewer than steps after an overflow."""
    return max((int(state["step"]) for state in _states(optimizer) if "step" in state), default=0)


def training_facts(
    model: torch.nn.Module,
    optimizer: Optimizers,
    updated_by_rank: list[list[int]],
) -> dict:
    """Return the number of parameters, the number updated, and the optimizer's class.

    Parameters without effect on the loss are never updated.

    updated_by_rank: result of `updated` on each rank.
    """
    sizes = [p.numel() for p in model.parameters()]
    types = {type(member) for member in optimizers(optimizer)}

    return {
        "parameters": sum(sizes),
        "updated_parameters": sum(sizes[number] for number in set().union(*updated_by_rank)),
        "optimizer": " + ".join(sorted(f"{kind.__module__}.{kind.__name__}" for kind in types)),
    }
