"""An NVIDIA or AMD GPU: its clock, memory, state and capabilities.

How a step is timed: kernels are queued in a stream, and the GPU executes them after the call that
queued them has returned. A step boundary is therefore an event in the stream: recording it waits
for nothing, and the GPU stores the time when it reaches it. The times are read after the run,
after the only synchronization, so a step costs the same as without a clock.
"""

from itertools import pairwise
from time import perf_counter
from types import SimpleNamespace

import torch

from Utils.base.units import MIB
from Utils.device.device import Device
from Utils.device.nvml import Nvml


class Event(torch.cuda.Event):
    """An event whose methods are those of when this module was imported."""

    record = torch.cuda.Event.record
    synchronize = torch.cuda.Event.synchronize
    elapsed_time = torch.cuda.Event.elapsed_time


# A script may replace functions of torch.cuda: the clock keeps these.
TORCH_CUDA = SimpleNamespace(**vars(torch.cuda) | {"Event": Event})


class CUDA(Device):
    """An NVIDIA GPU, or an AMD one through ROCm, which torch calls cuda too.

    device: torch.device with an index. cuda, nvml: functions of `torch.cuda` and of `pynvml`, or
    substitutes for tests. partners: process ids of runs that take turns with this one. It becomes
    torch's current device.
    """

    def __init__(self, device, cuda=TORCH_CUDA, nvml=None, partners=()):
        properties = cuda.get_device_properties(device)
        self.name = properties.name
        self.memory_bytes = properties.total_memory
        self.capability = (properties.major, properties.minor)
        self.multiprocessors = properties.multi_processor_count
        self.architecture = getattr(properties, "gcnArchName", "")  # such as gfx942, on ROCm alone

        self.torch_device = device
        self.cuda = cuda
        self.synchronize = cuda.synchronize
        self.nvml = Nvml(getattr(properties, "uuid", ""), nvml)

        # List processes before this one has a context: in a container NVML may give the host's
        # pids, and this process could not be recognized among them.
        self.other_processes = self.nvml.other_processes(partners)

        cuda.set_device(device)

    def mark(self):
        """Return a step boundary: an event, recorded in the stream without waiting for the GPU."""
        event = self.cuda.Event(enable_timing=True)
        event.record(self.cuda.current_stream(self.torch_device))
        return event

    def elapsed_ms(self, marks):
        """Return the milliseconds between consecutive marks, once the GPU has reached them."""
        self.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    def wait(self, mark):
        """Wait until the GPU is idle. Return the seconds from a mark on, of work in any stream."""
        mark.synchronize()
        start = perf_counter()
        self.synchronize()
        return perf_counter() - start

    @property
    def free_memory_bytes(self):
        return self.cuda.mem_get_info(self.torch_device)[0]

    def peak_memory_mib(self):
        """Return the peak of tensors allocated since the process began, in MiB."""
        return self.cuda.max_memory_allocated(self.torch_device) / MIB

    def reserved_memory_mib(self):
        """Return the peak held by torch's allocator, used by tensors or not, in MiB."""
        return self.cuda.max_memory_reserved(self.torch_device) / MIB

    def counters(self):
        """Return readings that only grow: clock_s, and those of `Nvml.counters`."""
        return super().counters() | self.nvml.counters()

    def readings(self):
        return self.nvml.readings()

    def describe(self):
        """Return the columns of a record; those from NVML are None if it does not answer."""
        return super().describe() | {
            "type": "rocm" if torch.version.hip else "cuda",
            "capability": "{}.{}".format(*self.capability),
            "toolkit": torch.version.hip or torch.version.cuda,
            "driver": self.nvml.call("SystemGetDriverVersion"),
            "power_limit_w": self.nvml.get("PowerManagementLimit", divisor=1e3),
        }
