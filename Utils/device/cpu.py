"""The host: its processor, memory and limits."""

import ctypes
import math
import os
import platform
import re
import resource
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import psutil
import torch

from Utils.base.text import plural
from Utils.base.units import MIB
from Utils.device.device import Device

# Parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


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
        return perf_counter()

    def elapsed_ms(self, marks):
        """Return the milliseconds between consecutive marks."""
        return [(end - start) * 1e3 for start, end in pairwise(marks)]

    def reset_peak_memory(self):
        if sys.platform == "linux":
            with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets VmHWM to the current size: proc(5)

    def peak_memory_mib(self):
        """Return the growth of the resident set since this object was made, at its peak, in MiB.

        Loaded libraries count too. If the process keeps freed memory, it is the peak until it began
        to: the script does not need the gaps between kept blocks.
        """
        if self.peak_mib is not None:
            return self.peak_mib

        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
        if sys.platform == "linux":  # ru_maxrss can be the parent's there
            status = Path("/proc/self/status").read_text()
            peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        return max(0.0, (peak_bytes - self.rss_before) / MIB)

    def keep_freed_memory(self, grows=False):
        """Let glibc's malloc keep freed blocks for later ones. No effect with another libc.

        By default malloc returns blocks of 32 MiB and more to the kernel, which clears their pages
        again in each step: logits of 512 tokens are 98 MiB. See `man mallopt`, docs/FINDINGS.md.
        grows: whether later steps may need more memory, so that the peak is not known yet.
        """
        self.peak_mib = None if grows else self.peak_memory_mib()
        if platform.libc_ver()[0] == "glibc":
            libc = ctypes.CDLL(None)
            libc.mallopt(M_MMAP_MAX, 0)
            libc.mallopt(M_TRIM_THRESHOLD, -1)

    def counters(self):
        """Return readings that only grow, in seconds.

        Those of all devices, and sums over all cores: all_cpu_s; busy_cpu_s, used by any process;
        steal_s, taken by the hypervisor, if counted.
        """
        times = psutil.cpu_times()._asdict()
        # The time of guests is part of the user time.
        all_cpu_s = sum(s for name, s in times.items() if not name.startswith("guest"))
        waiting_s = times["idle"] + times.get("iowait", 0.0) + times.get("steal", 0.0)

        counters = super().counters() | {
            "all_cpu_s": all_cpu_s,
            "busy_cpu_s": all_cpu_s - waiting_s,
        }
        if "steal" in times:
            counters["steal_s"] = times["steal"]
        return counters

    def describe(self):
        return super().describe() | {
            "name": processor_name(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }


def processor_name(cpuinfo="/proc/cpuinfo"):
    """Return the processor's name.

    Virtual machines may hide its number, and AVX-512 or AMX: "AMD EPYC" is Zen 4 on one host and
    Zen 5 on the next. If a name has no number (a clock does not count), the family, the model and
    these features are appended, to tell such processors apart.
    """
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    fields = {}
    with suppress(OSError):  # only Linux has this file
        first_core = Path(cpuinfo).read_text().partition("\n\n")[0]
        fields = dict(re.findall(r"^(.*?)\s*: *(.*)", first_core, re.MULTILINE))
    name = " ".join(fields.get("model name", "").replace("(R)", "").split())
    if not name:
        return platform.processor() or platform.machine()

    has_number = re.search(r"\d", name.partition("@")[0])
    if has_number or "cpu family" not in fields:  # only x86 has families
        return name

    name = f"{name} family {fields['cpu family']} model {fields['model']}"
    features = fields["flags"].split()
    if "amx_tile" in features:
        return f"{name} with AMX"
    return name if "avx512f" in features else f"{name} without AVX-512"


def usable_cpus():
    """Return the number of CPUs that this process may use: the lower of its affinity and quota."""
    with suppress(AttributeError):  # macOS has no affinity
        return min(len(os.sched_getaffinity(0)), cgroup_limits()[0])
    return os.cpu_count() or 1


def cgroup_limits(root="/sys/fs/cgroup", membership="/proc/self/cgroup"):
    """Return the limits (CPUs, bytes of memory) of this process's control groups.

    A limit is math.inf if there is none. A group's limits apply to its descendants. In a container
    the root is the container's.
    """
    cpus = [math.inf]
    memory_bytes = [math.inf]
    memberships = []
    with suppress(OSError):
        memberships = Path(membership).read_text().splitlines()

    for row in memberships:
        _, controllers, path = row.split(":", 2)
        top = Path(root, controllers.split(",")[0])  # each of several controllers has a link
        group = top / path.strip("/")

        for folder in (group, *group.parents):  # those above the groups have none of these files
            # Version 2 of control groups has one file, version 1 two. A quota of -1 means no limit.
            quota_and_period = _numbers(folder / "cpu.max")
            quota_and_period += _numbers(folder / "cpu.cfs_quota_us")
            quota_and_period += _numbers(folder / "cpu.cfs_period_us")
            if quota_and_period and quota_and_period[0] > 0:
                cpus.append(quota_and_period[0] / quota_and_period[1])

            memory_bytes += _numbers(folder / "memory.max")
            memory_bytes += _numbers(folder / "memory.limit_in_bytes")
    return min(cpus), min(memory_bytes)


def _numbers(path):
    """Return the numbers in a file, or []. No limit, "max" or 2**63 less a page, is math.inf."""
    with suppress(OSError):
        numbers = [float(word.replace("max", "inf")) for word in path.read_text().split()]
        return [math.inf if number > 2**60 else number for number in numbers]
    return []
