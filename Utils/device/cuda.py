"""An NVIDIA or AMD GPU: its clock, memory, state and capabilities.

How a step is timed: kernels are queued in a stream, and the GPU executes them after the call that
queued them has returned. A step boundary is therefore an event in the stream: recording it waits
for nothing, and the GPU stores the time when it reaches it. The times are read after the run,
behind the only synchronization, so a step costs the same as without a clock.
"""

import time
from contextlib import contextmanager
from itertools import pairwise

import torch

from Utils.base.units import MIB
from Utils.device.nvml import Nvml


class CUDA:
    """An NVIDIA GPU, or an AMD one through ROCm, which torch calls cuda too.

    device: torch.device with an index.
    cuda, nvml: the modules `torch.cuda` and `pynvml`, or substitutes for tests.
    partners: process ids of runs that take turns with this one.
    select: makes it torch's current device.
    other_processes: on the GPU, as in ["python3 (pid 4711, 1,234 MiB)"].
    """

    def __init__(self, device, cuda=torch.cuda, nvml=None, partners=(), select=True):
        self.torch_device = device
        self.cuda = cuda
        self.nvml = Nvml(getattr(cuda.get_device_properties(device), "uuid", ""), nvml)
        # Before this process has a context: in a container NVML may give the host's pids, among
        # which this process could not be recognized.
        self.other_processes = self.nvml.other_processes(partners)
        if select:
            cuda.set_device(device)

    # Clock

    def mark(self):
        """Return a step boundary: an event, recorded in the stream without waiting for the GPU."""
        event = self.cuda.Event(enable_timing=True)
        event.record(self.cuda.current_stream(self.torch_device))
        return event

    def elapsed_ms(self, marks):
        """Return the milliseconds between consecutive marks, once the GPU has reached them."""
        self.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    # Memory

    @property
    def memory_bytes(self):
        return self.cuda.get_device_properties(self.torch_device).total_memory

    @property
    def free_memory_bytes(self):
        return self.cuda.mem_get_info(self.torch_device)[0]

    def peak_memory_mib(self):
        """Return the peak of tensors allocated since the process began, in MiB."""
        return self.cuda.max_memory_allocated(self.torch_device) / MIB

    def reserved_memory_mib(self):
        """Return the peak held by torch's allocator, used by tensors or not, in MiB."""
        return self.cuda.max_memory_reserved(self.torch_device) / MIB

    def reset_peak_memory(self):
        """Do nothing: what precedes the first step takes less memory than a step."""

    def keep_freed_memory(self, grows=False):
        """Do nothing: torch's allocator keeps freed memory."""

    @contextmanager
    def memory_history(self):
        """Yield a dict, filled at the end with a snapshot for torch's memory viewer."""
        snapshot = {}
        self.cuda.memory._record_memory_history()
        try:
            yield snapshot
            snapshot |= self.cuda.memory._snapshot()
        finally:
            self.cuda.memory._record_memory_history(enabled=None)

    # State, read outside the timed steps

    def counters(self):
        """Return readings that only grow: clock_s, and those of `Nvml.counters`."""
        return {"clock_s": time.perf_counter(), **self.nvml.counters()}

    def readings(self):
        """Return `Nvml.readings`."""
        return self.nvml.readings()

    # Name and capabilities

    @property
    def name(self):
        return self.cuda.get_device_name(self.torch_device)

    @property
    def capability(self):
        """Compute capability as (major, minor)."""
        return self.cuda.get_device_capability(self.torch_device)

    @property
    def multiprocessors(self):
        return self.cuda.get_device_properties(self.torch_device).multi_processor_count

    @property
    def architecture(self):
        """Name such as gfx942 on ROCm, "" elsewhere."""
        properties = self.cuda.get_device_properties(self.torch_device)
        return getattr(properties, "gcnArchName", "")

    def describe(self):
        """Return the facts of a record. Those of NVML are None where it does not answer."""
        return {
            "type": "rocm" if torch.version.hip else "cuda",
            "name": self.name,
            "memory_mib": round(self.memory_bytes / MIB),
            "capability": "{}.{}".format(*self.capability),
            "toolkit": torch.version.hip or torch.version.cuda,
            "driver": self.nvml.driver(),
            "power_limit_w": self.nvml.power_limit_w(),
        }


class ImaginedGPU(CUDA):
    """A GPU known by its facts alone, for forecasts. Its tensors are on the CPU."""

    name = memory_bytes = capability = architecture = multiprocessors = None

    def __init__(self, name, memory_bytes, capability=(9, 0), architecture=""):
        self.torch_device = torch.device("cpu")
        self.name = name
        self.memory_bytes = memory_bytes
        self.capability = capability
        self.architecture = architecture
