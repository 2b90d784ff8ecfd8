"""The host's processor: its clock, its memory, and what else runs on it."""

import os
import platform
import resource
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from itertools import pairwise

import psutil
import torch

from Utils.base.units import MIB


class CPU:
    """The host's processor."""

    other_processes = ()  # they hold no GPU; what they took of the cores is in the counters

    def __init__(self, device=None):
        self.torch_device = torch.device("cpu")
        self.rss_before = psutil.Process().memory_info().rss

    @property
    def name(self):
        threads = torch.get_num_threads()
        return f"{processor_name()} ({threads} thread{'s' * (threads > 1)})"

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

    def reset_peak_memory(self):
        """Forget peaks from before the first step, such as that of tokenizing the corpus."""
        if sys.platform == "linux":
            with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # VmHWM starts again from what is resident now: proc(5)

    def peak_memory_mib(self):
        """Peak resident set of the process above what it was when this object was made, in MiB:
        weights, gradients, optimizer state, activations, and whatever a technique loads."""
        return max(0.0, (_peak_rss() - self.rss_before) / MIB)

    def reserved_memory_mib(self):
        return None  # torch keeps no pool of the host's memory

    @contextmanager
    def memory_history(self):
        """Gives a dict that, when the block has ended, is a snapshot for torch's memory viewer of
        what was allocated and freed in it, from a profile with allocations and stacks."""
        # Here, as only `make profile MEMORY=1` needs it: a training script is spared it.
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
        """What else is known of the device now: nothing."""
        return {}

    def describe(self):
        return {
            "type": "cpu",
            "name": processor_name(),
            "memory_mib": round(self.memory_bytes / MIB),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }


def processor_name():
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
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _own_cpu_s():
    """Seconds of CPU time of this process and all that descend from it, such as the workers of a
    DataLoader; of those that have ended too, as whoever waited for them has inherited theirs."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            total += sum(child.cpu_times()[:4])
    return total
