"""Rows of a run, and its record with the environment: threads, versions, variables."""

import contextlib
import hashlib
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from Utils.base import files, paths
from Utils.base.errors import UserError

IDENTITY = ("run_id", "base", "unit", "technique", "round", "commit")
SETTINGS = ("steps", "warmup", "batch_size", "seq_len", "model", "dataset", "seed")
SHAPE = ("batch_size", "requested_batch_size", "seq_len", "world_size", "model", "dataset", "seed")
VARIABLES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH", "TRITON_", "NCCL_")


def row(args, status):
    """Return the columns that all rows of a run share, a dict."""
    return {name: getattr(args, name) for name in (*IDENTITY, *SHAPE)} | {
        "status": status,
        "device": args.hardware.name,
        "torch": torch.__version__,
        "note": "; ".join(args.notes),
    }


def record(args, status):
    """Return the record of a run, its line of results.jsonl, a dict."""
    return {name: getattr(args, name) for name in (*IDENTITY, "source", "notes")} | {
        "status": status,
        "started": args.started.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
        "command": [args.technique, *map(str, args.argv)],
        "settings": {name: getattr(args, name) for name in SETTINGS},
        "chosen_automatically": args.auto,
        "suite": os.environ.get("SUITE"),
        "device": args.hardware.describe(),
        **environment(),
    }


def environment():
    """Return threads, versions, variables and torch's report of a process, a dict."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("numpy", "triton", "bitsandbytes", "torchao", "datasets", "tiktoken"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "versions": versions | {"cudnn": torch.backends.cudnn.version()},
        "platform": platform.platform(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES) and os.sep not in value  # paths may contain a user name
        },
        "collect_env": _collect_env(),
    }


def _collect_env():
    """Return the report of torch.utils.collect_env.

    It takes seconds, so it is cached until a reboot or the installation of a package.
    """
    packages = Path(torch.__file__).parent.parent
    parts = sys.executable, torch.__version__, psutil.boot_time(), packages.stat().st_mtime
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    cached = paths.CACHE / f"collect_env-{digest}.txt"
    if not cached.exists():
        # Here, as only the first run on a machine needs it.
        from torch.utils.collect_env import get_pretty_env_info

        report = get_pretty_env_info()
        with contextlib.suppress(UserError):
            files.write(cached, report)
        return report
    return cached.read_text()
