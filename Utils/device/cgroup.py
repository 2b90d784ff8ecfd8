"""Limits of CPUs and memory of this process."""

import math
import os
from contextlib import suppress
from pathlib import Path

NO_LIMIT = 2**60


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
    for folder in _folders(Path(root), Path(membership)):
        if share := _numbers(folder / "cpu.max"):  # version 2: quota and period
            cpus.append(share[0] / share[1])
        quota = _numbers(folder / "cpu.cfs_quota_us")  # version 1; -1 is none
        if quota and quota[0] > 0:
            cpus.append(quota[0] / _numbers(folder / "cpu.cfs_period_us")[0])
        memory_bytes += _numbers(folder / "memory.max")
        memory_bytes += _numbers(folder / "memory.limit_in_bytes")
    return min(cpus), min(memory_bytes)


def _folders(root, membership):
    """Yield the folders of this process's groups and of those above them."""
    lines = []
    with suppress(OSError):
        lines = membership.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # the folder is named cpu,cpuacct; links may have either name
        for top in {root / name for name in (controllers, *controllers.split(","))}:
            group = top / path.strip("/")
            yield group
            yield from (folder for folder in group.parents if folder.is_relative_to(top))


def _numbers(path):
    """Return the numbers of a file; math.inf for none, which is "max" or 2**63 less a page."""
    with suppress(OSError):
        numbers = [float(word.replace("max", "inf")) for word in path.read_text().split()]
        return [math.inf if number > NO_LIMIT else number for number in numbers]
    return []
