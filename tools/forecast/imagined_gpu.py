"""A GPU that is not here, and what cuBLAS takes of its memory."""

from dataclasses import dataclass

import torch

from Utils.device.cuda import CUDA


@dataclass(eq=False)
class ImaginedGPU(CUDA):
    """A GPU for forecasts, of which only the name, memory and capability are used.

    Its tensors are on the CPU.
    """

    name: str
    memory_bytes: int
    capability: tuple = (9, 0)
    architecture: str = ""
    torch_device = torch.device("cpu")
    multiprocessors = None


def workspace_bytes(device):
    """Return the bytes of cuBLAS's workspaces: one for each thread, forward and backward.

    The sizes are the defaults in torch's CublasHandlePool.cpp.
    """
    if not isinstance(device, CUDA) or device.architecture.startswith("gfx"):
        return 0
    kib = 8 * 4096 if device.capability >= (9, 0) else 2 * 4096 + 8 * 16
    return 2 * 1024 * kib
