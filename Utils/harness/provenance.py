"""The environment of a run: threads, versions, variables."""

import contextlib
import hashlib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from Utils.base import paths

VARIABLES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH", "TRITON_", "NCCL_")


def environment():
    """What else decides how a run goes: threads, versions, variables, torch's own report."""
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "versions": _versions(),
        "platform": platform.platform(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES) and os.sep not in value  # whose paths say who you are
        },
        "collect_env": _collect_env(),
    }


def _versions():
    """Of Python and of the packages that decide what runs, as far as they are there."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("numpy", "triton", "bitsandbytes", "torchao", "datasets", "tiktoken"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | {"cudnn": torch.backends.cudnn.version()}


def _collect_env():
    """The report of torch.utils.collect_env. It takes seconds, so it is kept until the machine is
    started anew or a package is installed."""
    packages = Path(torch.__file__).parent.parent
    parts = sys.executable, torch.__version__, psutil.boot_time(), packages.stat().st_mtime
    kept = paths.CACHE / f"collect_env-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.txt"
    try:
        return kept.read_text()
    except OSError:
        # Here, as only the first run of a machine needs it.
        from torch.utils.collect_env import get_pretty_env_info

        report = get_pretty_env_info()
        with contextlib.suppress(OSError):
            kept.write_text(report)
        return report
