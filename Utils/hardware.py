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
import importlib.util
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import torch

from Utils.config import VOCABULARY
from Utils.errors import Unsupported, UserError, first_line
from Utils.probes import usable_cpus

MIB = 2**20
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
    cores = max(1, int(usable_cpus()))
    return cores, f"{cores} core{'s' * (cores != 1)}"


def try_out(device):
    """What goes wrong with a first small product on a device, in one line, or ""."""
    try:
        ones = torch.ones(64, 64, device=device.torch_device)
        return "" if (ones @ ones).sum().item() == 64**3 else "it computes a wrong product"
    except Exception as error:  # whatever torch makes of a driver's answer
        return first_line(error)


# When torch sees no GPU -------------------------------------------------------------------------


def torch_toolkit():
    """What torch is built for: "CUDA 13.0", "ROCm 7.0", or "" for CPUs alone."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else ""


def gpus_of_torch(cuda=torch.cuda):
    """(how many CUDA devices torch sees, what it says where there is none)."""
    if count := cuda.device_count() if cuda.is_available() else 0:
        return count, ""
    try:
        cuda.init()
        return 0, "torch sees no CUDA device"
    except Exception as error:
        return 0, first_line(error)


def gpus_of_driver(nvml=None, kernel="/proc/driver/nvidia", bus="/sys/bus/pci/devices"):
    """The NVIDIA GPUs that are there whatever torch sees, and who says so: a dict.

    source: "NVML", "kernel" (its module is loaded, and NVML does not answer), "bus" (there is no
    driver) or "" (there is no GPU); gpus: names, as far as they are known; driver and cuda: its
    version and the newest CUDA that it runs, or None.
    """
    asked = Nvml(None, nvml)
    known = {"driver": asked.driver(), "cuda": asked.cuda(), "gpus": asked.names()}
    if known["gpus"]:
        return {"source": "NVML", **known}
    for file in Path(kernel).glob("gpus/*/information"):
        with suppress(OSError):
            known["gpus"] += re.findall(r"^Model:\s*(.*\S)", file.read_text(), re.MULTILINE)
    with suppress(OSError):
        version = re.search(r"\b(\d{3,}\.[\d.]*\d)", Path(kernel, "version").read_text())
        return {"source": "kernel", **known, "driver": version and version[1]}
    for device in Path(bus).glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
            if vendor.startswith("0x10de") and kind.startswith("0x03"):  # a display controller
                return {"source": "bus", **known}
    return {"source": "", **known}


# What NVML says of a GPU ------------------------------------------------------------------------

THROTTLE_REASONS = {  # bits of nvml.h; the lowest, "gpu idle", is no reason
    0x002: "applications clocks setting",
    0x004: "sw power cap",
    0x008: "hw slowdown",
    0x010: "sync boost",
    0x020: "sw thermal slowdown",
    0x040: "hw thermal slowdown",
    0x080: "hw power brake slowdown",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability",
}


class Nvml:
    """One GPU through NVML, of nvidia-ml-py. Nothing here raises: what is not to be had, for want
    of the package, of a driver, of permission, or on a GPU that does not have it, is left out.

    uuid: torch's, so without a prefix; numbers would not do, as CUDA_VISIBLE_DEVICES changes them.
        None where only the driver is asked.
    module: pynvml, or a test's stand-in.
    """

    def __init__(self, uuid, module=None):
        self.module, self.gpu = module, None
        if module is None:
            with suppress(ImportError):
                import pynvml

                self.module = pynvml
        self.ask(lambda nvml, gpu: nvml.nvmlInit())
        self.gpu = self._handle(f"GPU-{uuid}") or self._handle(f"MIG-{uuid}")
        if self.gpu is None and uuid is not None:  # the driver, if there is one, is not this GPU's
            self.module = None

    def _handle(self, name):
        return self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetHandleByUUID(name))

    def ask(self, question):
        """What question(module, gpu) returns, or None where that is not to be had."""
        try:
            return question(self.module, self.gpu)
        except Exception:  # NVMLError, or what module and driver of different versions make of it
            return None

    def driver(self):
        return self.ask(lambda nvml, gpu: nvml.nvmlSystemGetDriverVersion())

    def cuda(self):
        """The newest CUDA version that the driver runs, as (13, 0)."""
        number = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetCudaDriverVersion())
        return number and (number // 1000, number % 1000 // 10)

    def names(self):
        """Of all GPUs that the driver has."""

        def question(nvml, gpu):
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [nvml.nvmlDeviceGetName(handle) for handle in handles]

        return self.ask(question) or []

    def other_processes(self):
        """Who holds the GPU besides this process, as in ["python3 (pid 4711, 1,234 MiB)"]."""
        computing = self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        drawing = self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu))
        memory = {p.pid: p.usedGpuMemory for p in [*(computing or ()), *(drawing or ())]}
        memory.pop(os.getpid(), None)
        return [self._process(pid, used) for pid, used in memory.items()]

    def _process(self, pid, used_bytes):
        command = self.ask(lambda nvml, gpu: nvml.nvmlSystemGetProcessName(pid)) or ""
        name = os.path.basename(command.split(" ")[0])  # some come with their arguments
        facts = f"pid {pid}" if used_bytes is None else f"pid {pid}, {used_bytes / MIB:,.0f} MiB"
        return f"{name} ({facts})" if name else facts

    def counters(self):
        """Readings that only grow: energy_j, and power_violation_s, thermal_violation_s and so
        on, the seconds for which clocks were held down for that reason."""
        counted = {
            "energy_j": self.ask(
                lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
            ),
            "power_violation_s": self._violation_s("POWER"),
            "thermal_violation_s": self._violation_s("THERMAL"),
            "board_limit_violation_s": self._violation_s("BOARD_LIMIT"),
            "reliability_violation_s": self._violation_s("RELIABILITY"),
        }
        return _without_none(counted)

    def _violation_s(self, policy):
        def question(nvml, gpu):
            number = getattr(nvml, f"NVML_PERF_POLICY_{policy}")
            return nvml.nvmlDeviceGetViolationStatus(gpu, number).violationTime / 1e9

        return self.ask(question)

    def readings(self):
        """What the GPU is doing now: sm_clock_mhz, memory_clock_mhz, temperature_c, power_w,
        power_limit_w, used_memory_mib (by whomever), throttle_reasons (of THROTTLE_REASONS)."""
        ask = self.ask
        read = {
            "sm_clock_mhz": self._clock_mhz("SM"),
            "memory_clock_mhz": self._clock_mhz("MEM"),
            "temperature_c": ask(
                lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
            ),
            "power_w": ask(lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
            "power_limit_w": self.power_limit_w(),
            "used_memory_mib": ask(lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / MIB),
            "throttle_reasons": self._throttle_reasons(),
        }
        return _without_none(read)

    def _clock_mhz(self, clock):
        return self.ask(
            lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, getattr(nvml, f"NVML_CLOCK_{clock}"))
        )

    def power_limit_w(self):
        return self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3)

    def default_power_limit_w(self):
        return self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1e3)

    def _throttle_reasons(self):
        bits = self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
        if bits is None:  # the name that drivers before 535 know
            bits = self.ask(lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
        if bits is None:
            return None
        return [reason for bit, reason in THROTTLE_REASONS.items() if bits & bit]


def _without_none(found):
    return {name: value for name, value in found.items() if value is not None}


# What a technique needs -------------------------------------------------------------------------


class WithoutEffect(str):
    """What `check` says of a need that this device cannot serve, and that takes nothing amiss."""


class Emulated(str):
    """What `check` says of a need that this device serves by slower means than are meant."""


def check(need, device):
    """What stands against a technique that needs `need` on this device.

    need: "tf32", "bfloat16" (both: computed natively), "compile" (Inductor's tool chain), "triton"
        (kernels of our own), "float16", "float8" (both: on tensor cores), "managed_memory" (whose
        pages move between GPU and host), "pinned_memory", "cudnn_attention", "cuda_graphs",
        "distributed" (processes that form a group), "nccl", or the name of a Python package that
        must be there.
    Returns "" where it runs as meant, else a few words on what to hold against its timing: a str,
    WithoutEffect or Emulated where it is one of these.
    Raises Unsupported, with the reason, where it cannot run.
    """
    if need in CHECKS:
        return CHECKS[need](device) or ""
    if importlib.util.find_spec(need) is None:
        raise Unsupported(f"needs {need} (pip install {need})")
    return ""


def _check_tf32(device):
    if isinstance(device, CUDA) and not torch.version.hip:
        return _need_capability(device, (8, 0), "TF32")
    if isinstance(device, CPU) and _cpu_has("amx_fp16"):
        return None
    if isinstance(device, CUDA) and device.architecture.startswith(("gfx94", "gfx95")):
        return None  # AMD's matrix cores have it from the MI300 on
    return WithoutEffect("TF32: no effect expected on this device")


def _check_bfloat16(device):
    # torch.cuda.is_bf16_supported() says yes to emulation as well, so ask the hardware.
    if isinstance(device, CUDA) and not torch.version.hip:
        return _need_capability(device, (8, 0), "native bfloat16")
    if isinstance(device, CPU) and not _cpu_has("bf16"):
        return Emulated("bfloat16: emulated on this device")
    return None


def _check_compile(device):
    if isinstance(device, CUDA):
        if not torch.version.hip:
            _need_capability(device, (7, 0), "torch.compile")
        _check_triton(device)
    elif isinstance(device, CPU) and compiler("C++") is None:
        raise Unsupported("torch.compile needs a C++ compiler on a CPU (g++, or CXX=another)")


def _check_triton(device):
    if not isinstance(device, CUDA):
        raise Unsupported("Triton kernels need an NVIDIA or AMD GPU")
    if importlib.util.find_spec("triton") is None:
        raise Unsupported("needs triton (pip install triton)")
    if compiler("C") is None:
        raise Unsupported("triton needs a C compiler (gcc or clang)")


def compiler(language):
    """Path of the compiler that Inductor ("C++") or Triton ("C") takes, or None."""
    if language == "C++":
        names = [os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")]
    else:
        names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    return next(filter(None, map(shutil.which, names)), None)


def _need_capability(device, minimum, what):
    if device.capability < minimum:
        have, need = ("{}.{}".format(*version) for version in (device.capability, minimum))
        raise Unsupported(f"{what} needs compute capability {need}; {device.name} has {have}")


def _check_bitsandbytes(device):
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Unsupported("needs bitsandbytes (pip install bitsandbytes)")
    if isinstance(device, MPS):
        raise Unsupported("bitsandbytes has no 8-bit optimizer for Apple GPUs")


def _check_cudnn_attention(device):
    # As in torch's sdp_utils.cpp. GPT-2's shapes meet its other conditions.
    if not isinstance(device, CUDA) or torch.version.hip:
        raise Unsupported("cuDNN's attention needs an NVIDIA GPU")
    _need_capability(device, (8, 0), "cuDNN's attention")
    if (torch.backends.cudnn.version() or 0) < 90_000:
        raise Unsupported("cuDNN's attention needs cuDNN 9")
    if device.capability < (9, 0):
        return "cuDNN's attention: made for compute capability 9.0 and newer"


def _check_cuda_graphs(device):
    if not isinstance(device, CUDA):
        return WithoutEffect("CUDA graphs: no effect on this device")


def _check_float16(device):
    if isinstance(device, CPU):
        raise Unsupported("float16 needs a GPU; on a CPU bfloat16 is the 16-bit type")
    if isinstance(device, CUDA) and not torch.version.hip:
        _need_capability(device, (7, 0), "float16 on tensor cores")


def _check_float8(device):
    if not isinstance(device, CUDA):
        raise Unsupported("float8 products need an NVIDIA or AMD GPU")
    if not torch.version.hip:
        _need_capability(device, (8, 9), "float8")
    elif not device.architecture.startswith(("gfx94", "gfx95")):
        raise Unsupported(f"float8 needs an MI300 or newer; {device.name} is none")


def _check_managed_memory(device):
    return None if isinstance(device, CUDA) else WithoutEffect("not paged on this device")


def _check_distributed(device):
    if not torch.distributed.is_available():
        raise Unsupported("this build of torch has no torch.distributed")
    if isinstance(device, MPS):
        raise Unsupported("torch.distributed has no backend for Apple GPUs; DEVICE=cpu has one")


def _check_nccl(device):
    if not isinstance(device, CUDA) or not torch.distributed.is_nccl_available():
        raise Unsupported("needs NCCL, so an NVIDIA or AMD GPU; gloo has no bfloat16 hook")


def _check_pinned_memory(device):
    if not isinstance(device, CUDA):
        raise Unsupported("pinned memory is for copies to an NVIDIA or AMD GPU")


CHECKS = {
    "tf32": _check_tf32,
    "bfloat16": _check_bfloat16,
    "compile": _check_compile,
    "triton": _check_triton,
    "bitsandbytes": _check_bitsandbytes,
    "cudnn_attention": _check_cudnn_attention,
    "cuda_graphs": _check_cuda_graphs,
    "float16": _check_float16,
    "float8": _check_float8,
    "managed_memory": _check_managed_memory,
    "pinned_memory": _check_pinned_memory,
    "distributed": _check_distributed,
    "nccl": _check_nccl,
}


# A shape at which the baseline fits -------------------------------------------------------------

# Of a device's memory, what tensors cannot take: the context, loaded kernels and the libraries'
# workspaces, and of the rest what torch's allocator holds in pieces too small for the next tensor.
OVERHEAD_BYTES = 2**30
FRAGMENTED = 0.05


def usable_bytes(memory_bytes):
    """How much of a device's memory tensors can take."""
    return int((memory_bytes - OVERHEAD_BYTES) * (1 - FRAGMENTED))


def baseline_bytes(config, parameters, batch_size, seq_len):
    """About the peak of the baseline on a GPU, in bytes; `make forecast` works it out in full.

    In float32, either as the backward begins, with weights and AdamW's two moments beside the
    activations (16 of width n_embd a block and the scores; four of the logits' size), or in the
    update, with gradients and as much again, but no activations.
    """
    per_token = config.n_layer * (16 * config.n_embd + config.n_head * seq_len) + 4 * VOCABULARY
    return max(12 * parameters + 4 * batch_size * seq_len * per_token, 20 * parameters)


def auto_shape(device, config, parameters, batch_size=None, seq_len=None, ranks=1):
    """(batch_size, seq_len) at which the baseline fits the device, the same for every script. With
    several ranks the batch is theirs together: each takes what it would take alone.

    config, parameters: the model's shape and its number of parameters.
    batch_size, seq_len: given where one of the two is fixed.
    """
    if isinstance(device, CPU):
        return batch_size or ranks, seq_len or 64
    room = usable_bytes(device.memory_bytes)
    for T in [seq_len] if seq_len else [1024, 512, 256, 128, 64]:
        for B in [batch_size // ranks] if batch_size else [16, 8, 4, 2, 1]:
            if baseline_bytes(config, parameters, B, T) <= room:
                return B * ranks, T
    return batch_size or ranks, seq_len or 64


# Small readings ---------------------------------------------------------------------------------


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


def _cpu_has(feature):
    """Whether the CPU has an instruction set whose name holds `feature`."""
    if hasattr(torch.cpu, "get_capabilities"):
        return any(
            on is True and feature in name for name, on in torch.cpu.get_capabilities().items()
        )
    flags = {"bf16": "_is_avx512_bf16_supported", "amx_fp16": "_is_amx_fp16_supported"}
    return getattr(torch.cpu, flags[feature], lambda: False)()


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
