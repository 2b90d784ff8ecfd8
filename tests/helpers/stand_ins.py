"""Stand-ins for what a test cannot have: a GPU, a full disk."""

import os
import resource
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pynvml
import torch

from tools.share import submission
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.base.units import MIB
from Utils.device.cuda import CUDA


class FakeCuda:
    """Stands in for the module torch.cuda and records its calls in `calls`, by name and in order.

    Every event lies 10 ms behind the one before. As on a GPU, its time can be read only once a
    synchronization has followed it.
    """

    def __init__(self, name="Fake GPU", capability=(8, 0), memory_bytes=80e9, architecture=""):
        self.properties = SimpleNamespace(
            name=name,
            major=capability[0],
            minor=capability[1],
            total_memory=int(memory_bytes),
            multi_processor_count=108,
            uuid="fake-uuid",
            gcnArchName=architecture,
        )
        self.calls = []
        self.recorded_ms = self.reached_ms = 0

    def Event(self, enable_timing=False):
        self.calls.append("Event")
        return FakeEvent(self, enable_timing)

    def synchronize(self):
        self.calls.append("synchronize")
        self.reached_ms = self.recorded_ms

    def __getattr__(self, name):
        """Return a function of a device."""
        answers = {
            "get_device_properties": self.properties,
            "get_arch_list": ["sm_80", "sm_86", "sm_90", "sm_120"],
            "mem_get_info": (self.properties.total_memory,),
            "max_memory_allocated": 3 * MIB,
            "max_memory_reserved": 5 * MIB,
            "current_stream": None,
            "set_device": None,
        }

        def answer(device=None):
            if name.startswith("max_memory"):
                self.calls.append(name)
            return answers[name]

        return answer


def gpu(nvml=None, partners=(), **properties):
    """A CUDA device on a FakeCuda of these properties."""
    return CUDA(torch.device("cuda", 0), FakeCuda(**properties), nvml, partners)


class FakeEvent:
    def __init__(self, cuda, enable_timing):
        self.cuda = cuda
        self.enable_timing = enable_timing

    def record(self, stream):
        self.cuda.calls.append("record")
        self.cuda.recorded_ms += 10.0
        self.ms = self.cuda.recorded_ms

    def synchronize(self):
        self.cuda.calls.append("wait")

    def elapsed_time(self, end):
        self.cuda.calls.append("elapsed_time")
        assert self.enable_timing and end.enable_timing
        assert end.ms <= self.cuda.reached_ms, "the event has not been waited for"
        return end.ms - self.ms


def process(pid, mib=None):
    """A process as NVML lists it."""
    return SimpleNamespace(pid=pid, usedGpuMemory=mib and mib * MIB)


class FakeNvml:
    """Stands in for the module pynvml, whose names and constants it has, for one GPU.

    answers: by call, the name of a function without nvml and its arguments. A call without an
    answer fails, and each does before Init. `calls` has their names in order; a FakeCuda's list
    can be handed in, to see both in one.
    """

    def __init__(self, calls=None):
        self.calls = [] if calls is None else calls
        self.is_initialized = False
        unsupported = SimpleNamespace(nvmlReturn=3)
        slowdown = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=4 * 10**12))
        self.answers = {
            "Init": None,
            "SystemGetDriverVersion": "580.95.05",
            "SystemGetCudaDriverVersion": 12_040,
            "DeviceGetHandleByIndex 0": "gpu",
            "DeviceGetHandleByUUID GPU-fake-uuid": "gpu",
            "DeviceGetName gpu": "NVIDIA Fake",
            "DeviceGetComputeRunningProcesses gpu": [process(os.getpid(), 500)],
            "DeviceGetTotalEnergyConsumption gpu": 10**12,
            "DeviceGetViolationStatus gpu 1": SimpleNamespace(violationTime=2e12),
            "DeviceGetFieldValues gpu [269, 270, 271]": [unsupported, slowdown, unsupported],
            "DeviceGetClockInfo gpu 1": 1710,
            "DeviceGetTemperature gpu 0": 61,
            "DeviceGetPowerUsage gpu": 345_678,
            "DeviceGetPowerManagementLimit gpu": 700_000,
            "DeviceGetMemoryInfo gpu": SimpleNamespace(used=4096 * MIB),
            "DeviceGetCurrentClocksEventReasons gpu": 0,
        }

    def __getattr__(self, name):
        real = getattr(pynvml, name)
        return partial(self.answer, name) if callable(real) else real

    def answer(self, name, *arguments):
        self.calls.append(name)
        answer = self.answers[" ".join(map(str, (name[len("nvml") :], *arguments)))]
        self.is_initialized |= name == "nvmlInit"
        assert self.is_initialized
        return answer


def busy_nvml():
    """A FakeNvml of a GPU that is hot, and that another process uses too."""
    nvml = FakeNvml()
    nvml.answers["DeviceGetComputeRunningProcesses gpu"].append(process(4711, 1234.4))
    nvml.answers["DeviceGetCurrentClocksEventReasons gpu"] = 0x40
    return nvml


@contextmanager
def full_disk(size):
    """Limit file sizes: writes are cut short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def answer(monkeypatch, answers):
    """Replace functions, given by their dotted names, with functions of these constants."""
    for name, value in answers.items():
        monkeypatch.setattr(name, lambda *_, value=value: value, raising=False)


def arguments(*flags):
    """The settings of a run as they are before a device is chosen."""
    return Parser("", "", *RUN_SETTINGS).parse_args(flags)


def doubled_batch(patch, script=None):
    """Let larger_batch double its batch, without trials."""
    double = lambda args, name, at_most: args.replace(batch_size=2 * args.batch_size)  # noqa: E731
    patch.setattr("beyond.memory.batch_trials.with_largest_batch", double)


def without_charts(patch):
    """Let folders to share have a picture of nothing, as drawing takes a process and 4 s."""
    picture = submission.PNG + submission.PNG_END
    patch.setattr(
        "tools.share.submission.draw", lambda new: (new / "speedup.png").write_bytes(picture)
    )
