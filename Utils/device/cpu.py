"""The host: its processor, memory and limits, and Apple's GPU, which shares its memory."""

import ctypes
import math
import os
import platform
import re
import resource
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import torch

from Utils.base.text import plural
from Utils.base.units import MIB

M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
M_MMAP_MAX = -4


class Device:
    """What a device has unless its class says more."""

    other_processes = ()  # on the GPU, as in ["python3 (pid 4711, 1,234 MiB)"]

    def reset_peak_memory(self):
        """Reset the peak, where what precedes the first step may have raised it."""

    def keep_freed_memory(self, grows=False):
        """Let the process keep what it frees, as torch's allocators of GPUs always do."""

    def reserved_memory_mib(self):
        """Return the peak held by torch's allocator in MiB, or None without one."""

    def counters(self):
        """Return readings that only grow: clock_s."""
        return {"clock_s": time.perf_counter()}

    def readings(self):
        """Return readings of the device now, as `Nvml.readings`."""
        return {}

    def describe(self):
        """Return the facts of a record."""
        memory_mib = round(self.memory_bytes / MIB)
        return {"type": self.torch_device.type, "name": self.name, "memory_mib": memory_mib}


class CPU(Device):
    """The host's processor."""

    def __init__(self):
        self.torch_device = torch.device("cpu")
        self.rss_before = psutil.Process().memory_info().rss
        self.peak_mib = None

    @property
    def name(self):
        return f"{processor_name()} ({plural(torch.get_num_threads(), 'thread')})"

    @property
    def memory_bytes(self):
        return psutil.virtual_memory().total

    @property
    def free_memory_bytes(self):
        return psutil.virtual_memory().available

    def mark(self):
        """Return a step boundary: seconds, as work is finished when its call returns."""
        return time.perf_counter()

    def elapsed_ms(self, marks):
        """Return the milliseconds between consecutive marks."""
        return [(end - start) * 1e3 for start, end in pairwise(marks)]

    def reset_peak_memory(self):
        if sys.platform == "linux":
            with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets VmHWM to the current size: proc(5)

    def peak_memory_mib(self):
        """Return the growth of the resident set since this object was made, at its peak, in MiB.

        It covers loaded libraries too. Of a process that keeps freed memory it is the peak until
        then: gaps between kept blocks are not the script's.
        """
        if self.peak_mib is not None:
            return self.peak_mib
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
        if sys.platform == "linux":  # there it can be the parent's
            status = Path("/proc/self/status").read_text()
            peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        return max(0.0, (peak_bytes - self.rss_before) / MIB)

    def keep_freed_memory(self, grows=False):
        """Let glibc's malloc keep freed blocks for later ones. No effect with another libc.

        By default it returns blocks of 32 MiB and more, so each step waits for the kernel to clear
        their pages anew: logits of 512 tokens are 98 MiB. See `man mallopt`, docs/FINDINGS.md.
        grows: whether later steps may need more memory, so that the peak is not known yet.
        """
        self.peak_mib = None if grows else self.peak_memory_mib()
        if platform.libc_ver()[0] == "glibc":
            libc = ctypes.CDLL(None)
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, -1)

    def counters(self):
        """Return readings that only grow, in seconds.

        clock_s; over all cores all_cpu_s, busy_cpu_s (of any process), own_cpu_s (of this process
        and its descendants) and, where counted, steal_s (taken by the hypervisor).
        """
        times = psutil.cpu_times()._asdict()
        all_cpu_s = sum(s for name, s in times.items() if not name.startswith("guest"))  # in user
        waiting_s = times["idle"] + times.get("iowait", 0.0) + times.get("steal", 0.0)
        own_cpu_s = sum(os.times()[:4])  # with that of ended descendants
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # ended meanwhile
                own_cpu_s += sum(child.cpu_times()[:4])
        counters = super().counters() | {"all_cpu_s": all_cpu_s, "own_cpu_s": own_cpu_s}
        stolen = {"steal_s": times["steal"]} if "steal" in times else {}
        return counters | stolen | {"busy_cpu_s": all_cpu_s - waiting_s}

    def describe(self):
        capability = torch.backends.cpu.get_cpu_capability()
        return super().describe() | {"name": processor_name(), "capability": capability}


class MPS(Device):
    """An Apple GPU. torch keeps no peak: the size of the driver's pool at the end replaces it."""

    def __init__(self, device):
        self.torch_device = device
        self.name = processor_name()

    @property
    def memory_bytes(self):
        return torch.mps.recommended_max_memory()

    @property
    def free_memory_bytes(self):
        return self.memory_bytes - torch.mps.driver_allocated_memory()

    def mark(self):
        """Return a step boundary: an event, recorded without waiting for the GPU."""
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, marks):
        """Return the milliseconds between consecutive marks, once the GPU has reached them."""
        torch.mps.synchronize()
        return [start.elapsed_time(end) for start, end in pairwise(marks)]

    def peak_memory_mib(self):
        """Return the size of the driver's pool in MiB."""
        return torch.mps.driver_allocated_memory() / MIB


def processor_name(cpuinfo="/proc/cpuinfo"):
    """Return the processor's name.

    Virtual machines may hide its number, and AVX-512 or AMX: "AMD EPYC" is Zen 4 on one host and
    Zen 5 on the next. A name without a number (a clock is none) is followed by what tells them.
    """
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    facts = {}
    with suppress(OSError):  # only Linux has it
        first_core = Path(cpuinfo).read_text().partition("\n\n")[0]
        facts = dict(re.findall(r"^(.*?)\s*: *(.*)", first_core, re.MULTILINE))
    name = " ".join(facts.get("model name", "").replace("(R)", "").split())
    numbered = any(letter.isdigit() for letter in name.partition("@")[0])
    if not name or numbered or "cpu family" not in facts:  # only x86 has one
        return name or platform.processor() or platform.machine()
    name = f"{name} family {facts['cpu family']} model {facts['model']}"
    features = facts["flags"].split()
    if "amx_tile" in features:
        return f"{name} with AMX"
    return name if "avx512f" in features else f"{name} without AVX-512"


def usable_cpus():
    """Return the number of CPUs that this process may use: its affinity, or its quota if less."""
    with suppress(AttributeError):  # macOS has no affinity
        return min(len(os.sched_getaffinity(0)), cgroup_limits()[0])
    return os.cpu_count() or 1


def cgroup_limits(root="/sys/fs/cgroup", membership="/proc/self/cgroup"):
    """Return (CPUs, bytes of memory) of this process's control groups; math.inf for no limit.

    A group's limits apply to its descendants; in a container the root is the container's.
    """
    cpus = [math.inf]
    memory_bytes = [math.inf]
    lines = []
    with suppress(OSError):
        lines = Path(membership).read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = Path(root, controllers.split(",")[0])  # of several, links have the name of each
        group = top / path.strip("/")
        for folder in (group, *group.parents)[: 1 + len(group.relative_to(top).parts)]:
            if share := _numbers(folder / "cpu.max"):  # version 2: quota and period
                cpus.append(share[0] / share[1])
            quota = _numbers(folder / "cpu.cfs_quota_us")  # version 1; -1 is none
            if quota and quota[0] > 0:
                cpus.append(quota[0] / _numbers(folder / "cpu.cfs_period_us")[0])
            memory_bytes += _numbers(folder / "memory.max")
            memory_bytes += _numbers(folder / "memory.limit_in_bytes")
    return min(cpus), min(memory_bytes)


def _numbers(path):
    """Return the numbers of a file; math.inf for none, which is "max" or 2**63 less a page."""
    with suppress(OSError):
        numbers = [float(word.replace("max", "inf")) for word in path.read_text().split()]
        return [math.inf if number > 2**60 else number for number in numbers]
    return []
