"""What the device is, what it can do, and what it is doing.

The rest of the code asks one object, chosen once, for the time and the memory; nothing else in
Utils names torch.cuda. The clock is read at step boundaries only:

- On a GPU a boundary is an event in the stream. Recording one does not wait for the GPU, so the
  loop runs as it would without us; the times are read after the last step, behind the one and
  only synchronization.
- On a CPU work is finished when the call returns, so a boundary is `time.perf_counter()`.

What else goes on is read outside the timed steps: `other_processes` when the device is chosen,
`counters()` before the first timed step and after the last, `readings()` after the last.
"""

import contextlib
import logging
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise

import psutil
import torch

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.base.units import MIB
from Utils.device import cgroup
from Utils.device.nvml import Nvml

# A toolkit on a machine without a GPU, met by whatever compiles, is no news of the run's.
logging.getLogger("torch.utils.cpp_extension").addFilter(
    lambda message: not str(message.msg).startswith("No CUDA runtime is found, using CUDA_HOME")
)


class CPU:
    """The host's processor."""

    other_processes = ()  # they hold no GPU; what they took of the cores is in the counters

    def __init__(self, device=None):
        self.torch_device = torch.device("cpu")
        self.forget_peak_memory()

    @property
    def name(self):
        threads = torch.get_num_threads()
        return f"{_cpu_name()} ({threads} thread{'s' * (threads > 1)})"

    @property
    def memory_bytes(self):
        return psutil.virtual_memory().total

    @property
    def free_memory_bytes(self):
        return psutil.virtual_memory().available

    def mark(self):
        """A step boundary, to be handed to `elapsed_ms` after the run."""
        return time.perf_counter()

    def elapsed_ms(self, marks):
        """Milliseconds between each mark and the next: one fewer than there are marks."""
        return [(end - start) * 1e3 for start, end in pairwise(marks)]

    def forget_peak_memory(self):
        """From here on memory counts: called when the corpus is there, before there is a model."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # VmHWM starts again from what is resident now: proc(5)
        self.rss_before = psutil.Process().memory_info().rss

    def peak_memory_mib(self):
        """Peak resident set of the process above what it was before the model, in MiB: weights,
        gradients, optimizer state, activations, and whatever a technique loads."""
        return max(0.0, (_peak_rss() - self.rss_before) / MIB)

    def reserved_memory_mib(self):
        return None  # torch keeps no pool of the host's memory

    @contextlib.contextmanager
    def memory_history(self):
        """Gives a dict that, when the block has ended, is a snapshot for torch's memory viewer of
        what was allocated and freed in it, from a profile with allocations and stacks."""
        from torch.cuda._memory_viz import _profile_to_snapshot

        snapshot = {}
        with torch.profiler.profile(
            profile_memory=True, record_shapes=True, with_stack=True
        ) as profile:
            yield snapshot
        snapshot |= _profile_to_snapshot(profile)

    def counters(self):
        """Readings that only grow, in seconds: clock_s, and of all cores together all_cpu_s,
        busy_cpu_s (at work for any process), own_cpu_s (for this one and its descendants) and,
        where it is counted, steal_s (taken by the hypervisor)."""
        cores = psutil.cpu_times()._asdict()
        cores = {name: cores[name] for name in cores if not name.startswith("guest")}  # in user
        idle = cores["idle"] + cores.get("iowait", 0.0)
        counted = {
            "clock_s": time.perf_counter(),
            "all_cpu_s": sum(cores.values()),
            "busy_cpu_s": sum(cores.values()) - idle - cores.get("steal", 0.0),
            "own_cpu_s": _own_cpu_s(),
        }
        return counted | ({"steal_s": cores["steal"]} if "steal" in cores else {})

    def readings(self):
        """What the device is doing now, as far as it can be asked."""
        return {}

    def describe(self):
        return {
            "type": "cpu",
            "name": _cpu_name(),
            "memory_mib": round(self.memory_bytes / MIB),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }


class CUDA:
    """An NVIDIA GPU, or an AMD one through ROCm, which torch calls cuda too.

    cuda, nvml: the modules that are asked, `torch.cuda` and `pynvml`; a test hands in others that
        record the calls.
    other_processes: who else holds the GPU, as in ["python3 (pid 4711, 1,234 MiB)"].
    """

    def __init__(self, device, cuda=torch.cuda, nvml=None):
        self.torch_device, self.cuda = device, cuda
        self.nvml = Nvml(getattr(cuda.get_device_properties(device), "uuid", ""), nvml)
        # Before we have a context: in a container NVML may give the host's pids, and the one of
        # this process could not be told from others.
        self.other_processes = self.nvml.other_processes()
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
    def architecture(self):
        """gfx942 and the like on ROCm, "" elsewhere."""
        properties = self.cuda.get_device_properties(self.torch_device)
        return getattr(properties, "gcnArchName", "")

    def built_for(self):
        """(whether torch's build has code for this GPU, what it has code for, as in "sm_90").

        Machine code (sm_90) runs on its own major version from its minor one on, that of an
        architecture with a letter (sm_90a) on that one alone; PTX (compute_90) is compiled by the
        driver, for whatever is newer.
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

    def forget_peak_memory(self):
        pass  # the corpus takes none of the GPU's

    def peak_memory_mib(self):
        """Peak of what torch's allocator had handed out, in MiB, since the process began."""
        return self.cuda.max_memory_allocated(self.torch_device) / MIB

    def reserved_memory_mib(self):
        """Peak of what torch's allocator held of the device, used by tensors or not, in MiB."""
        return self.cuda.max_memory_reserved(self.torch_device) / MIB

    @contextlib.contextmanager
    def memory_history(self):
        """Gives a dict that, when the block has ended, is a snapshot for torch's memory viewer of
        what was allocated and freed in it, from the allocator itself."""
        snapshot = {}
        self.cuda.memory._record_memory_history()
        try:
            yield snapshot
            snapshot |= self.cuda.memory._snapshot()
        finally:
            self.cuda.memory._record_memory_history(enabled=None)

    def counters(self):
        """Readings that only grow: clock_s, and those of `Nvml.counters`."""
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
            "clocks_max_sm_mhz": self.nvml.ask(
                lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)
            ),
        }


class ImaginedGPU(CUDA):
    """A GPU known by its facts alone, for what is worked out and not run. It need not be here, so
    tensors that stand for its own are the CPU's."""

    name = memory_bytes = capability = architecture = None

    def __init__(self, name, memory_bytes, capability=(9, 0), architecture=""):
        self.torch_device, self.name = torch.device("cpu"), name
        self.memory_bytes, self.capability = memory_bytes, capability
        self.architecture = architecture


class MPS:
    """An Apple GPU. torch keeps no peak there; what the driver has given to its pool by the end
    stands in for it. What else it is doing, no one tells without being root."""

    other_processes = ()

    def __init__(self, device):
        self.torch_device = device

    @property
    def name(self):
        return _cpu_name()

    @property
    def memory_bytes(self):
        return torch.mps.recommended_max_memory()

    @property
    def free_memory_bytes(self):
        return self.memory_bytes - torch.mps.driver_allocated_memory()

    def mark(self):
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, marks):
        torch.mps.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    def forget_peak_memory(self):
        pass

    def peak_memory_mib(self):
        return torch.mps.driver_allocated_memory() / MIB

    def reserved_memory_mib(self):
        return None  # its pool is what peak_memory_mib reads

    def counters(self):
        return {"clock_s": time.perf_counter()}

    def readings(self):
        return {}

    def describe(self):
        return {"type": "mps", "name": self.name, "memory_mib": round(self.memory_bytes / MIB)}


def choose(wanted, local_rank=0, local_world_size=1):
    """The device of that name: auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:1, mps.

    local_rank, local_world_size: which of how many processes on this machine asks. Of several each
    takes a GPU of its own.
    Raises UserError where it is not there.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            wanted = "cuda"
        else:
            wanted = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    known = device is not None and device.type in ("cpu", "cuda", "mps")
    if not known or str(device) != wanted:  # torch takes cuda:256 for cuda:0
        raise UserError(f"--device {wanted}: choose auto, cpu, cuda, cuda:N or mps")
    if device.type == "cuda" and local_world_size > 1:
        if device.index is not None:
            raise UserError(f"--device {wanted}: each rank takes a GPU of its own; use cuda")
        if (count := torch.cuda.device_count()) < local_world_size:
            raise UserError(f"{local_world_size} ranks, and torch sees {gpus(count)}")
        device = torch.device("cuda", local_rank)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"--device {wanted}: torch {torch.__version__} sees {count} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device mps: torch {torch.__version__} sees no Apple GPU")
    if device.type == "cuda":
        return CUDA(torch.device("cuda", device.index or 0))
    return MPS(device) if device.type == "mps" else CPU()


def gpus(count):
    return f"{count} GPU{'s' * (count != 1)}"


def available(wanted):
    """How many processes of a run this machine has room for, and of what it has so many, in words:
    one a GPU, or one a core that this process may use. wanted: as for `choose`."""
    device = choose(wanted)
    if isinstance(device, CUDA):
        count = 1 if ":" in wanted else torch.cuda.device_count()
        return count, gpus(count)
    if isinstance(device, MPS):
        return 1, gpus(1)
    cores = max(1, int(cgroup.usable_cpus()))
    return cores, f"{cores} core{'s' * (cores != 1)}"


def try_out(device):
    """What goes wrong with a first small product on a device, in one line, or ""."""
    try:
        ones = torch.ones(64, 64, device=device.torch_device)
        return "" if (ones @ ones).sum().item() == 64**3 else "it computes a wrong product"
    except Exception as error:  # whatever torch makes of a driver's answer
        return errors.first_line(error)


def is_out_of_memory(error):
    """Whether an exception says that memory ran out, on whichever device."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    words += ("cublas_status_alloc_failed",)  # a GPU so full that cuBLAS has no workspace
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )


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


def _cpu_name():
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return " ".join(line.split(":", 1)[1].split())
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return platform.processor() or platform.machine()


def _peak_rss():
    """Bytes. VmHWM is this process's own; getrusage's figure can come from the parent."""
    if sys.platform == "linux":
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _own_cpu_s():
    """Seconds of CPU time of this process and all that descend from it, such as the workers of a
    DataLoader; of those that have ended too, as whoever waited for them has inherited theirs."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            total += sum(child.cpu_times()[:4])
    return total
