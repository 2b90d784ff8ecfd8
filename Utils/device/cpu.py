"""The host's processor: its clock, its memory and its load."""

import ctypes
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

from Utils.base.text import plural
from Utils.base.units import MIB

M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
M_MMAP_MAX = -4


class CPU:
    """The host's processor."""

    other_processes = ()  # of a GPU; the counters show the load of the cores

    def __init__(self, device=None):
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
        """Reset the peak, which tokenizing the corpus may have raised."""
        if sys.platform == "linux":
            with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets VmHWM to the current size: proc(5)

    def peak_memory_mib(self):
        """Return the growth of the resident set since this object was made, at its peak, in MiB.

        It covers weights, gradients, optimizer state, activations and loaded libraries. Of a
        process that keeps freed memory it is the peak until then: gaps between kept blocks are not
        the script's.
        """
        if self.peak_mib is not None:
            return self.peak_mib
        return max(0.0, (_peak_rss() - self.rss_before) / MIB)

    def keep_freed_memory(self, grows=False):
        """Let the process keep what it frees, as torch's allocators of GPUs do.

        grows: whether later steps may need more memory, so that the peak is not known yet.
        """
        self.peak_mib = None if grows else self.peak_memory_mib()
        keep_freed_memory()

    def reserved_memory_mib(self):
        """Return None: torch keeps no pool of the host's memory."""

    @contextmanager
    def memory_history(self):
        """Yield a dict that the end of the block fills with a snapshot for torch's memory viewer.

        It holds the allocations of the block, from a profile with stacks.
        """
        # Here, as only `make profile MEMORY=1` needs it.
        from torch.cuda._memory_viz import _profile_to_snapshot

        snapshot = {}
        with torch.profiler.profile(
            profile_memory=True, record_shapes=True, with_stack=True
        ) as profile:
            yield snapshot
        snapshot |= _profile_to_snapshot(profile)

    def counters(self):
        """Return readings that only grow, in seconds.

        clock_s; over all cores all_cpu_s, busy_cpu_s (of any process), own_cpu_s (of this process
        and its descendants) and, where counted, steal_s (taken by the hypervisor).
        """
        times = psutil.cpu_times()._asdict()
        all_cpu_s = sum(s for name, s in times.items() if not name.startswith("guest"))  # in user
        waiting_s = times["idle"] + times.get("iowait", 0.0) + times.get("steal", 0.0)
        counters = {
            "clock_s": time.perf_counter(),
            "all_cpu_s": all_cpu_s,
            "busy_cpu_s": all_cpu_s - waiting_s,
            "own_cpu_s": _own_cpu_s(),
        }
        if "steal" in times:
            counters["steal_s"] = times["steal"]
        return counters

    def readings(self):
        """Return readings of the device now: none of a CPU."""
        return {}

    def describe(self):
        """Return the facts of a record."""
        return {
            "type": "cpu",
            "name": processor_name(),
            "memory_mib": round(self.memory_bytes / MIB),
            "capability": torch.backends.cpu.get_cpu_capability(),
        }


def keep_freed_memory():
    """Let glibc's malloc keep freed blocks for later ones. No effect with another libc.

    By default it maps blocks of 32 MiB and more one by one and returns them when they are freed, so
    each step waits for the kernel to find and clear their pages anew: logits of 512 tokens are 98
    MiB. A virtual machine may also hand free memory back to its host, and pages that were free for
    seconds then cost 20 times as much. See `man mallopt` and docs/FINDINGS.md.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def processor_name(cpuinfo="/proc/cpuinfo"):
    """Return the processor's name.

    Virtual machines may hide its number: "AMD EPYC" is Zen 4 on one host and Zen 5 on the next. A
    name without a number (a clock is none) has family and model behind it. They may also hide
    AVX-512 or AMX, which decide how torch computes, so such a name says which of them is there.
    """
    if sys.platform == "linux":
        with open(cpuinfo) as file:
            lines = file.read().partition("\n\n")[0].splitlines()  # of the first core
        fields = (line.partition(":") for line in lines)
        facts = {key.strip(): " ".join(value.split()) for key, _, value in fields}
        if name := facts.get("model name", "").replace("(R)", ""):
            numbered = any(letter.isdigit() for letter in name.partition("@")[0])
            if numbered or "cpu family" not in facts:  # only x86 has one
                return name
            name = f"{name} family {facts['cpu family']} model {facts['model']}"
            features = facts["flags"].split()
            if "amx_tile" in features:
                return f"{name} with AMX"
            return name if "avx512f" in features else f"{name} without AVX-512"
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return platform.processor() or platform.machine()


def _peak_rss():
    """Return bytes. On Linux from VmHWM, as getrusage's figure can be the parent's."""
    if sys.platform == "linux":
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _own_cpu_s():
    """Return the CPU time of this process and its descendants in seconds.

    Ended descendants count too: their parents inherit their time.
    """
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # ended meanwhile
            total += sum(child.cpu_times()[:4])
    return total
