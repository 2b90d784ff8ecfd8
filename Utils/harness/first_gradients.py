"""Norm of a run's gradients before its first update, which compares what scripts differentiate.

Until then all scripts have the same weights, and scripts of one round the same batch.
"""

import torch
from torch.linalg import vector_norm

from Utils.harness.memory_kinds import Optimizers, optimizers


class FirstGradients:
    """Norm of all gradients, within a `with` block that is the first training step.

    It is computed on the device, when the last optimizer is about to step: nothing waits. Before
    that GradScaler has divided the gradients of the others by its scale.

    norm: 0-d tensor, or None. The gradients of optimizer_in_backward never exist at once, and
        GradScaler makes no step after an overflow.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Optimizers):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.last = optimizers(optimizer)[-1:]
        self.norm = None

    def __enter__(self):
        self.hooks = [member.register_step_pre_hook(self._measure) for member in self.last]

    def __exit__(self, *error):
        for hook in self.hooks:
            hook.remove()

    def _measure(self, optimizer, *arguments):
        gradients = [p.grad for p in self.parameters]
        if any(gradient is None for gradient in gradients):
            return

        # By rows: a CPU's float32 norm of 40M elements at once is wrong by 0.3%.
        rows = [vector_norm(gradient, dim=-1, dtype=torch.float32) for gradient in gradients]
        norm = vector_norm(torch.stack([vector_norm(of_rows) for of_rows in rows]))
        if hasattr(norm, "full_tensor"):  # of the shards of all ranks
            norm = norm.full_tensor()
        scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer under GradScaler
        self.norm = norm if scale is None else norm / scale
