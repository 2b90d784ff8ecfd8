"""An Apple GPU: its clock and memory."""

import time
from itertools import pairwise

import torch

from Utils.base.units import MIB
from Utils.device.cpu import processor_name


class MPS:
    """An Apple GPU. torch keeps no peak: the size of the driver's pool at the end replaces it."""

    other_processes = ()

    def __init__(self, device):
        self.torch_device = device

    @property
    def name(self):
        return processor_name()

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

    def elapsed_ms(self, marks):
        """Return the milliseconds between consecutive marks, once the GPU has reached them."""
        torch.mps.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    def reset_peak_memory(self):
        """Do nothing: torch keeps no peak."""

    def peak_memory_mib(self):
        """Return the size of the driver's pool in MiB."""
        return torch.mps.driver_allocated_memory() / MIB

    def reserved_memory_mib(self):
        """Return None: its pool is what `peak_memory_mib` returns."""

    def keep_freed_memory(self, grows=False):
        """Do nothing: torch's allocator keeps freed memory."""

    def counters(self):
        """Return readings that only grow: clock_s."""
        return {"clock_s": time.perf_counter()}

    def readings(self):
        """Return {}: only root can read them."""
        return {}

    def describe(self):
        """Return the facts of a record."""
        return {"type": "mps", "name": self.name, "memory_mib": round(self.memory_bytes / MIB)}
