"""Stand-ins for what a test cannot have: a GPU, a full disk."""

import resource
from contextlib import contextmanager
from types import SimpleNamespace


class FakeCuda:
    """Stands in for the module torch.cuda and records every call in `calls`, by name and in order.

    Every event lies 10 ms behind the one before. As on a GPU, its time can be read only once a
    synchronization has followed it.
    """

    def __init__(self, name="Fake GPU", capability=(8, 0), memory_bytes=80e9, architecture=""):
        self.name, self.capability, self.memory_bytes = name, capability, memory_bytes
        self.architecture = architecture
        self.calls, self.events = [], []

    def Event(self, enable_timing=False):
        self.calls.append("Event")
        return FakeEvent(self, enable_timing)

    def synchronize(self, device=None):
        self.calls.append("synchronize")
        for event in self.events:
            event.finished = True

    def set_device(self, device):
        self.calls.append("set_device")
        self.current = device

    def get_device_name(self, device):
        self.calls.append("get_device_name")
        return self.name

    def get_device_properties(self, device):
        self.calls.append("get_device_properties")
        return SimpleNamespace(
            total_memory=int(self.memory_bytes), uuid="fake-uuid", gcnArchName=self.architecture
        )

    def get_device_capability(self, device):
        self.calls.append("get_device_capability")
        return self.capability

    def max_memory_allocated(self, device):
        self.calls.append("max_memory_allocated")
        return 3 * 2**20

    def max_memory_reserved(self, device):
        self.calls.append("max_memory_reserved")
        return 5 * 2**20


class FakeEvent:
    def __init__(self, cuda, enable_timing):
        self.cuda, self.enable_timing, self.time, self.finished = cuda, enable_timing, None, False

    def record(self):
        self.cuda.calls.append("record")
        self.cuda.events.append(self)
        self.time = 10.0 * len(self.cuda.events)

    def elapsed_time(self, end):
        self.cuda.calls.append("elapsed_time")
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("the event was made without enable_timing")
        if not (self.finished and end.finished):
            raise RuntimeError("the event has not been waited for")
        return end.time - self.time


@contextmanager
def full_disk(size):
    """No file of this process can grow beyond so many bytes: writes end short, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
