"""Limits of CPUs and memory of this process."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path


def usable_cpus():
    """Return the number of CPUs that this process may use: its affinity, or its quota if less."""
    with suppress(AttributeError):  # macOS has no affinity
        return min(len(os.sched_getaffinity(0)), cgroup_limits()[0])
    return os.cpu_count() or 1


def cgroup_limits(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """Return (CPUs, bytes of memory) of this process's control groups; math.inf for no limit.

    A group's limits apply to its descendants; in a container the root is the container's.
    """
    cpus, memory = [math.inf], [math.inf]

    def numbers(path):
        with suppress(OSError):
            return [math.inf if x == "max" else float(x) for x in path.read_text().split()]
        return []

    lines = []
    with suppress(OSError):
        lines = Path(own).read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # the folder is named cpu,cpuacct; links may have either name
        for top in {Path(root, name) for name in (controllers, *controllers.split(","))}:
            group = top / path.strip("/")
            folders = [group, *group.parents]
            for folder in folders[: folders.index(top) + 1]:
                if share := numbers(folder / "cpu.max"):  # version 2: quota and period
                    cpus.append(share[0] / share[1])
                quota = numbers(folder / "cpu.cfs_quota_us")  # version 1; -1 is none
                if quota and quota[0] > 0:
                    cpus.append(quota[0] / numbers(folder / "cpu.cfs_period_us")[0])
                memory += numbers(folder / "memory.max")
                memory += [x for x in numbers(folder / "memory.limit_in_bytes") if x < 2**60]
    return min(cpus), min(memory)
