"""Memory of a run by kind, and what was trained by which optimizer."""

import torch

from Utils.base.units import MIB


class GradientWatch:
    """The most bytes of gradients that are there at once, in the step that it is entered for.

    A hook looks whenever a gradient is complete, so a technique that frees each one as soon as it
    is used shows what it saves.
    """

    def __init__(self, model):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.most = None

    def __enter__(self):
        self.most = 0
        self.hooks = [p.register_post_accumulate_grad_hook(self._look) for p in self.parameters]

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()

    def _look(self, complete):
        others = (p.grad for p in self.parameters if p is not complete and p.grad is not None)
        held = sum(_local(grad).nbytes for grad in others)
        self.most = max(self.most, _local(complete).nbytes + held)


def _local(tensor):
    """What this rank holds of a tensor that is sharded over several; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def memory(device, model, optimizer, gradients):
    """Peak memory by kind, in MiB: a dict.

    peak_mib; reserved_mib, what torch's allocator held of the device at most (None on a CPU);
    weights_mib, buffers included; gradients_mib, the most that were there at once (None where no
    step was watched); optimizer_state_mib; rest_mib, what the peak has beyond those: activations,
    workspace and, on a CPU, libraries. As gradients arrive while activations go, activations alone
    can be larger than the rest. Optimizer state that is kept off the device is off_device_mib, and
    no part of the peak: there, where the driver moves it, it may lie on the device for a while.
    optimizer: an optimizer, several, or None. gradients: bytes or None.
    """
    peak = device.peak_memory_mib()
    own = {p.device for p in model.parameters()} or {torch.device("cpu")}
    kinds = {
        "weights_mib": _size([*model.parameters(), *model.buffers()]),
        "gradients_mib": gradients,
        "optimizer_state_mib": _size(x for x in _state_of(optimizer) if x.device in own),
    }
    kinds = {kind: size if size is None else size / MIB for kind, size in kinds.items()}
    rest = max(0.0, peak - sum(filter(None, kinds.values())))
    found = {"peak_mib": peak, "reserved_mib": device.reserved_memory_mib(), **kinds}
    found["rest_mib"] = rest if gradients is not None else None
    found["off_device_mib"] = _size(x for x in _state_of(optimizer) if x.device not in own) / MIB
    return {kind: size if size is None else round(size, 1) for kind, size in found.items()}


def optimizers(optimizer):
    """A list of them: of one, of several in a list or a dict, of none."""
    if optimizer is None:
        return []
    if hasattr(optimizer, "state"):
        return [getattr(optimizer, "optim", optimizer)]  # ZeroRedundancyOptimizer's is inside
    return list(optimizer.values() if isinstance(optimizer, dict) else optimizer)


def _state_of(optimizer):
    for one in optimizers(optimizer):
        for state in one.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _size(tensors):
    """Bytes, those of shared storage once."""
    storages = (_local(tensor).untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def updated(model, optimizer):
    """Which of the model's parameters, by number, an optimizer of this rank has ever updated."""
    known = {id(p) for one in optimizers(optimizer) for p in one.state}
    return [number for number, p in enumerate(model.parameters()) if id(p) in known]


def training(model, optimizer, everyones=None):
    """What was trained by what: the number of parameters, how many of them an optimizer has ever
    updated (fewer where a part of the model has no say in the loss), and its class.

    everyones: what `updated` says on each of several ranks."""
    everyones = everyones or [updated(model, optimizer)]
    sizes, ours = [p.numel() for p in model.parameters()], optimizers(optimizer)
    classes = {f"{type(one).__module__}.{type(one).__name__}" for one in ours}
    return {
        "parameters": sum(sizes),
        "updated_parameters": sum(sizes[number] for number in set().union(*everyones)),
        "optimizer": " + ".join(sorted(classes)),
    }
