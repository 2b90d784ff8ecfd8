"""Floating-point operations of a model that is not ours, counted by torch."""

import contextlib
import json
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from Utils.base import files, paths
from Utils.base.errors import UserError
from Utils.harness import batch_units


@dataclass(frozen=True)
class Shape:
    """A tensor without its values, which would take memory during the run."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device


def _shape(value):
    if isinstance(value, torch.Tensor):
        return Shape(value.shape, value.dtype, value.device)
    return value


def _zeros(value):
    if isinstance(value, Shape):
        return torch.zeros(value.size, dtype=value.dtype, device=value.device)
    return value


class Call:
    """The arguments of the first call of a model, by shape, to repeat it after the run.

    A compiled model is called through its wrapper, so the hook is no part of a graph.
    """

    def __init__(self, model):
        self.model, self.inputs = model, None
        if isinstance(model, torch.nn.Module) and not getattr(model, "_compiled_call_impl", None):
            self.hook = model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, model, args, kwargs):
        self.inputs = tree_map(_shape, (args, kwargs))
        self.hook.remove()

    def count(self):
        """Return the operations of forward and backward, or None where they cannot be counted."""
        if self.inputs is None:
            return None
        plain = getattr(self.model, "_orig_mod", self.model)
        args, kwargs = tree_map(_zeros, self.inputs)
        with contextlib.suppress(Exception), FlopCounterMode(display=False) as counter:
            outputs = plain(*args, **kwargs)
            outputs = getattr(outputs, "loss", None) if hasattr(outputs, "loss") else outputs
            floats = [t for t in batch_units.tensors(outputs) if t.requires_grad]
            sum(t.float().sum() for t in floats).backward()
            return counter.get_total_flops() or None
        return None


def per_unit(args, call):
    """Return the operations per unit of a step, or None.

    Counted once for each version of a base and shape, in its plain script: kernels that torch does
    not know, as those of a compiled model, would be left out.
    """
    weights = sum(p.numel() for p in call.model.parameters())
    name = f"{args.base}-{args.commit}-{weights}-{args.batch_size}x{args.seq_len}.json"
    path = paths.CACHE / "bases" / "flops" / name
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    counted = call.count()
    rate = counted and counted / (args.batch_size * args.seq_len)
    if args.technique == args.base:
        with contextlib.suppress(UserError):
            files.write_json(path, rate)
    return rate
