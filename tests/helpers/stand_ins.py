"""Stand-ins for what a test cannot have: a GPU, a full disk."""

import os
import resource
from argparse import Namespace
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from beyond.memory import batch_trials
from Utils.base.command_line import RUN_SETTINGS, Parser
from Utils.device.cuda import CUDA


class FakeCuda:
    """Stands in for the module torch.cuda and records every call in `calls`, by name and in order.

    Every event lies 10 ms behind the one before. As on a GPU, its time can be read only once a
    synchronization has followed it.
    """

    SNAPSHOT = {"segments": ["of the fake"], "device_traces": [[]]}

    def __init__(self, name="Fake GPU", capability=(8, 0), memory_bytes=80e9, architecture=""):
        self.name, self.capability, self.memory_bytes = name, capability, memory_bytes
        self.architecture = architecture
        self.free_bytes, self.multiprocessors = memory_bytes, 108
        self.calls = []
        self.events = []
        self.memory = self

    def _record_memory_history(self, enabled="all"):
        self.calls.append(f"_record_memory_history {enabled}")

    def _snapshot(self):
        self.calls.append("_snapshot")
        return self.SNAPSHOT

    def get_arch_list(self):
        return ["sm_80", "sm_86", "sm_90", "sm_120"]

    def Event(self, enable_timing=False):
        self.calls.append("Event")
        return FakeEvent(self, enable_timing)

    def synchronize(self, device=None):
        self.calls.append("synchronize")
        for event in self.events:
            event.finished = True

    def current_stream(self, device):
        return "the current stream"

    def set_device(self, device):
        self.calls.append("set_device")
        self.current = device

    def __getattr__(self, name):
        """Return a function of a device that is recorded as the others are."""
        properties = SimpleNamespace(
            total_memory=int(self.memory_bytes),
            multi_processor_count=self.multiprocessors,
            uuid="fake-uuid",
            gcnArchName=self.architecture,
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
        )
        answers = {
            "get_device_properties": properties,
            "mem_get_info": (int(self.free_bytes), int(self.memory_bytes)),
            "max_memory_allocated": 3 * 2**20,
            "max_memory_reserved": 5 * 2**20,
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda device: self.calls.append(name) or answers[name]


def gpu(nvml=None, partners=(), **properties):
    """A CUDA device on a FakeCuda of these properties."""
    return CUDA(torch.device("cuda", 0), FakeCuda(**properties), nvml, partners)


class FakeEvent:
    def __init__(self, cuda, enable_timing):
        self.cuda = cuda
        self.enable_timing = enable_timing
        self.finished = False

    def record(self, stream=None):
        self.cuda.calls.append("record")
        self.cuda.events.append(self)
        self.time = 10.0 * len(self.cuda.events)

    def elapsed_time(self, end):
        self.cuda.calls.append("elapsed_time")
        assert self.enable_timing and end.enable_timing
        assert self.finished and end.finished, "the event has not been waited for"
        return end.time - self.time


class FakeNvml:
    """Stands in for the module pynvml: its names, numbers, units and structures, for one GPU.

    A test sets what is to be answered, and in `errors` which function raises what. `calls` has
    their names in order; a FakeCuda's list can be handed in, to see both in one.
    """

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM = 0, 1
    NVML_TEMPERATURE_GPU = 0
    NVML_PERF_POLICY_THERMAL = 1
    NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270
    NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271
    NVML_SUCCESS = 0
    HANDLE = "the fake GPU's handle"

    def __init__(self, calls=None):
        self.calls = [] if calls is None else calls
        self.errors = {}
        self.initialized = False
        self.uuid = "GPU-fake-uuid"
        self.compute = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=500 * 2**20)]  # or None
        self.names = {}
        self.energy_mj = 10**12
        self.reasons = 0
        self.cuda_version = 13_000

    def fields(self, ids):
        values = {270: SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=4 * 10**12))}
        return [values.get(id, SimpleNamespace(nvmlReturn=3)) for id in ids]

    def __getattr__(self, name):
        """Return a function of NVML: recorded, refused where the fake is told to and before
        nvmlInit, and asked about no GPU but the one there is.
        """
        violation = SimpleNamespace(referenceTime=1, violationTime=2e12)
        of_the_gpu = {
            "nvmlDeviceGetName": "NVIDIA Fake",
            "nvmlDeviceGetComputeRunningProcesses": self.compute,
            "nvmlDeviceGetTotalEnergyConsumption": self.energy_mj,
            "nvmlDeviceGetViolationStatus": {1: violation}.get,
            "nvmlDeviceGetFieldValues": self.fields,
            "nvmlDeviceGetClockInfo": {0: 1700, 1: 1710}.get,
            "nvmlDeviceGetTemperature": {0: 61}.get,
            "nvmlDeviceGetPowerUsage": 345_678,
            "nvmlDeviceGetPowerManagementLimit": 700_000,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 * 2**30, used=4 * 2**30),
            "nvmlDeviceGetCurrentClocksEventReasons": self.reasons,
        }
        answers = of_the_gpu | {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlSystemGetCudaDriverVersion": self.cuda_version,
            "nvmlSystemGetProcessName": self.names.get,
            "nvmlDeviceGetHandleByIndex": {0: self.HANDLE}.get,
            "nvmlDeviceGetHandleByUUID": {self.uuid: self.HANDLE}.get,
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(*arguments):
            self.calls.append(name)
            if name in self.errors:
                raise self.errors[name]
            self.initialized |= name == "nvmlInit"
            assert self.initialized
            if name in of_the_gpu:
                gpu, *arguments = arguments
                assert gpu == self.HANDLE
            return answers[name](*arguments) if arguments else answers[name]

        return answer


@contextmanager
def full_disk(size):
    """No file of this process can grow beyond so many bytes: writes end short, then fail."""
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
    return Namespace(**vars(Parser("", "", *RUN_SETTINGS).parse_args(flags)))


def doubled_batch(patch, script=None):
    """Let larger_batch double its batch, without trials."""
    double = lambda args, name, at_most: args.replace(batch_size=2 * args.batch_size)  # noqa: E731
    patch.setattr(batch_trials, "with_largest_batch", double)
