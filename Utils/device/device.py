"""What all devices have in common."""

import time

import psutil

from Utils.base.units import MIB


class Device:
    """Defaults that the classes of devices override."""

    other_processes = ()  # on the GPU, such as ["python3 (pid 4711, 1,234 MiB)"]

    def reset_peak_memory(self):
        """Reset the peak of memory, if work before the first step may have raised it."""

    def keep_freed_memory(self, grows=False):
        """Let the process keep freed memory, as torch's allocators of GPUs always do."""

    def reserved_memory_mib(self):
        """Return the peak held by torch's allocator in MiB, or None without one."""

    def counters(self):
        """Return readings that only grow: clock_s, and swapped_mib, read back from the swap."""
        swapped_mib = psutil.swap_memory().sin / MIB
        return {"clock_s": time.perf_counter(), "swapped_mib": swapped_mib}

    def readings(self):
        """Return the device's present state, with the keys of `Nvml.readings`."""
        return {}

    def describe(self):
        """Return the columns of a record that describe the device."""
        memory_mib = round(self.memory_bytes / MIB)
        return {"type": self.torch_device.type, "name": self.name, "memory_mib": memory_mib}
