"""Apple's GPU, which shares the memory of the host."""

import torch

from Utils.base.units import MIB
from Utils.device.cpu import processor_name
from Utils.device.cuda import CUDA
from Utils.device.device import Device


class MPS(Device):
    """An Apple GPU. torch records no peak, so the final size of the driver's pool replaces it."""

    def __init__(self, device):
        self.torch_device = device
        self.synchronize = torch.mps.synchronize
        self.name = processor_name()

    @property
    def memory_bytes(self):
        return torch.mps.recommended_max_memory()

    @property
    def free_memory_bytes(self):
        return self.memory_bytes - torch.mps.driver_allocated_memory()

    def mark(self):
        """Return a step boundary: an event, recorded without waiting for the GPU."""
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event

    wait = CUDA.wait  # both kinds of events are read alike
    elapsed_ms = CUDA.elapsed_ms

    def peak_memory_mib(self):
        """Return the size of the driver's pool in MiB."""
        return torch.mps.driver_allocated_memory() / MIB
