"""What all devices have in common."""

import os
from contextlib import suppress
from time import perf_counter, process_time, thread_time

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
        """Return readings that only grow.

        clock_s; swapped_mib, read back from the swap; and CPU time in seconds: own_cpu_s of this
        process and its descendants, beside_cpu_s of these without the calling thread.
        """
        thread_cpu_s = thread_time()
        own_cpu_s = process_time() + sum(os.times()[2:4])  # with descendants that ended
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it ended meanwhile
                own_cpu_s += sum(child.cpu_times()[:4])

        return {
            "clock_s": perf_counter(),
            "swapped_mib": psutil.swap_memory().sin / MIB,
            "own_cpu_s": own_cpu_s,
            "beside_cpu_s": own_cpu_s - thread_cpu_s,
        }

    def wait(self, mark):
        """Wait until the device is idle. Return the seconds from a mark until then."""
        return 0.0

    def readings(self):
        """Return the device's present state, with the keys of `Nvml.readings`."""
        return {}

    def describe(self):
        """Return the columns of a record that describe the device."""
        memory_mib = round(self.memory_bytes / MIB)
        return {"type": self.torch_device.type, "name": self.name, "memory_mib": memory_mib}
