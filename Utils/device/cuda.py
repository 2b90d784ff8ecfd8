"""An NVIDIA or AMD GPU: its clock, memory, capabilities and state."""

import re
import time
from contextlib import contextmanager
from itertools import pairwise

import torch

from Utils.base.units import MIB
from Utils.device.nvml import Nvml


class CUDA:
    """An NVIDIA GPU, or an AMD one through ROCm, which torch calls cuda too.

    cuda, nvml: the modules `torch.cuda` and `pynvml`, or substitutes for tests.
    partners: pids of runs that take turns with this one. other_processes: on the GPU, without
        these, as in ["python3 (pid 4711, 1,234 MiB)"].
    """

    def __init__(self, device, cuda=torch.cuda, nvml=None, partners=()):
        self.torch_device, self.cuda = device, cuda
        self.nvml = Nvml(getattr(cuda.get_device_properties(device), "uuid", ""), nvml)
        # Before this process has a context: in a container NVML may give the host's pids, among
        # which this process could not be recognized.
        self.other_processes = self.nvml.other_processes(partners)
        cuda.set_device(device)

    @property
    def name(self):
        return self.cuda.get_device_name(self.torch_device)

    @property
    def memory_bytes(self):
        return self.cuda.get_device_properties(self.torch_device).total_memory

    @property
    def free_memory_bytes(self):
        return self.cuda.mem_get_info(self.torch_device)[0]

    @property
    def capability(self):
        return self.cuda.get_device_capability(self.torch_device)

    @property
    def multiprocessors(self):
        return self.cuda.get_device_properties(self.torch_device).multi_processor_count

    @property
    def architecture(self):
        """Name such as gfx942 on ROCm, "" elsewhere."""
        properties = self.cuda.get_device_properties(self.torch_device)
        return getattr(properties, "gcnArchName", "")

    def built_for(self):
        """Return (whether torch's build covers this GPU, its architectures such as "sm_90").

        Machine code (sm_90) runs on the same major version from its minor version on, or with a
        letter (sm_90a) on that version alone. The driver compiles PTX (compute_90) for newer GPUs.
        """
        built = self.cuda.get_arch_list()
        if torch.version.hip:
            return self.architecture.split(":")[0] in built, built
        return any(_runs_on(self.capability, architecture) for architecture in built), built

    def mark(self):
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, marks):
        self.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    def reset_peak_memory(self):
        pass  # nothing before the first step takes more than a step

    def peak_memory_mib(self):
        """Return the peak of tensors allocated since the process began, in MiB."""
        return self.cuda.max_memory_allocated(self.torch_device) / MIB

    def reserved_memory_mib(self):
        """Return the peak held by torch's allocator, used by tensors or not, in MiB."""
        return self.cuda.max_memory_reserved(self.torch_device) / MIB

    def keep_freed_memory(self, grows=False):
        pass  # torch's allocator does

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

    def counters(self):
        """Return readings that only grow: clock_s, and those of `Nvml.counters`."""
        return {"clock_s": time.perf_counter(), **self.nvml.counters()}

    def readings(self):
        return self.nvml.readings()

    def describe(self):
        return {
            "type": "rocm" if torch.version.hip else "cuda",
            "name": self.name,
            "memory_mib": round(self.memory_bytes / MIB),
            "capability": "{}.{}".format(*self.capability),
            "toolkit": torch.version.hip or torch.version.cuda,
            "driver": self.nvml.driver(),
            "power_limit_w": self.nvml.power_limit_w(),
            "clocks_max_sm_mhz": self.nvml.get("MaxClockInfo", "CLOCK_SM"),
        }


class ImaginedGPU(CUDA):
    """A GPU known by its facts alone, for forecasts. Its tensors are on the CPU."""

    name = memory_bytes = capability = architecture = multiprocessors = None

    def __init__(self, name, memory_bytes, capability=(9, 0), architecture=""):
        self.torch_device, self.name = torch.device("cpu"), name
        self.memory_bytes, self.capability = memory_bytes, capability
        self.architecture = architecture


def _runs_on(capability, architecture):
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", architecture)
    if not parts:
        return False
    built = int(parts[2]), int(parts[3])
    if parts[4] == "a":
        return capability == built
    if parts[1] == "compute" and not parts[4]:
        return capability >= built
    return capability[0] == built[0] and capability >= built
