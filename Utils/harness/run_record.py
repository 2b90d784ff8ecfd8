"""Rows of a run, and its record: measurements of all ranks, torch.compile's statistics, threads,
versions, variables."""

import contextlib
import hashlib
import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil
import torch
from torch.utils import collect_env

from Utils.base import files, paths
from Utils.base.errors import UserError
from Utils.base.text import plural
from Utils.harness import memory_kinds, run_quality, step_work

DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for batches gets a note
IDENTITY = ("run_id", "base", "unit", "technique", "round", "commit")
SETTINGS = ("steps", "warmup", "batch_size", "seq_len", "model", "dataset", "seed")
SHAPE = ("batch_size", "requested_batch_size", "seq_len", "world_size", "model", "dataset", "seed")
VARIABLES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH", "TRITON_", "NCCL_")


@dataclass(frozen=True)
class RankResult:
    """Measurements of one rank."""

    step_ms: list  # of each step
    data_ms: list  # of each step: the part spent waiting for data
    timed: list  # True for each timed step, False for warm-up; the same on all ranks
    losses: list  # nats, one per step
    held_out_loss: float | None  # nats
    memory: dict  # of `memory_kinds.memory`
    counters: dict  # of the device: growth over the timed steps
    readings: dict  # of the device, at the end
    updated: list  # numbers of the parameters that an optimizer has updated
    node: int  # number of the machine
    other_processes: list  # on the device


def combine(args, ranks, model, optimizer, dataset_facts, flops_per_unit=None):
    """Return (rows, record) of a run from the RankResults, in order.

    A step takes the time of the slowest rank; its loss is the mean. Notes go to args.notes.
    """
    step_ms = np.max([rank.step_ms for rank in ranks], axis=0)
    data_ms = np.max([rank.data_ms for rank in ranks], axis=0)
    losses = np.mean([rank.losses for rank in ranks], axis=0)
    timed = np.array(ranks[0].timed)
    memory = max((rank.memory for rank in ranks), key=lambda memory: memory["peak_mib"])
    if not np.isfinite(losses).all():
        args.notes.append("the loss is not finite")
    if args.warmup and any(rank.counters.get("compiled_graphs") for rank in ranks):
        args.notes.append("torch.compile compiled in a timed step")
    compiled = compilation()
    if compiled and (count := compiled["recompilations"]):
        graphs = plural(count, "recompilation")
        args.notes.append(f"{graphs} by torch.compile; TORCH_LOGS=recompiles says why")
    waiting = data_ms[timed].sum() / step_ms[timed].sum()
    if waiting > DATA_SHARE:
        args.notes.append(f"waits for data {waiting:.0%} of the time")
    quality = run_quality.of_ranks(ranks, step_ms[timed].tolist())
    of_the_run = row(args, "ok") | {
        "held_out_loss": ranks[0].held_out_loss,
        "first_step_s": round(float(step_ms[0]) / 1e3, 4),
        "peak_memory_mib": memory["peak_mib"],
        "reserved_memory_mib": memory["reserved_mib"],
        "grade": quality["grade"],
    }
    rows = []
    for step, loss in enumerate(losses.tolist()):
        of_the_step = {
            "step": step,
            "phase": "timed" if timed[step] else "warmup",
            "step_ms": round(float(step_ms[step]), 4),
            "data_ms": round(float(data_ms[step]), 4),
            "loss": loss,
        }
        rows.append(of_the_run | of_the_step)
    of_ranks = [
        {
            "rank": number,
            "node": rank.node,
            "median_step_ms": round(float(np.median(np.array(rank.step_ms)[timed])), 4),
            "median_data_ms": round(float(np.median(np.array(rank.data_ms)[timed])), 4),
            "memory": rank.memory,
        }
        for number, rank in enumerate(ranks)
    ]
    return rows, {
        **record(args, "ok"),
        "dataset_facts": dataset_facts,
        **memory_kinds.training(model, optimizer, [rank.updated for rank in ranks]),
        "memory": memory,
        "compile": compiled,
        "limits": step_work.describe(args, flops_per_unit),
        "quality": quality,
        **({"ranks": of_ranks} if len(ranks) > 1 else {}),
    }


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
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("numpy", "triton", "bitsandbytes", "torchao", "datasets", "tiktoken"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {name: getattr(args, name) for name in (*IDENTITY, "source", "notes")} | {
        "status": status,
        "started": args.started.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
        "command": [args.technique, *map(str, args.argv)],
        "settings": {name: getattr(args, name) for name in SETTINGS},
        "suite": os.environ.get("SUITE"),
        "device": args.hardware.describe(),
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
    if cached.exists():
        return cached.read_text()
    report = collect_env.get_pretty_env_info()
    with contextlib.suppress(UserError):
        files.write(cached, report)
    return report


def compiled_graphs():
    """Return the number of graphs compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


def compilation():
    """Return the statistics of torch.compile, a dict, or None where it compiled nothing.

    graphs; recompilations among them, after a guard failed; cache: "warm" where all of it came from
    Inductor's cache on disk, else "cold", None of another backend.
    """
    if not compiled_graphs():
        return None
    dynamo = sys.modules["torch._dynamo.utils"]
    metrics = dynamo.get_compilation_metrics()
    # An id is "0/1": the second version of the first function, "0/1_1" another attempt at it.
    again = [m.compile_id.split("_")[0] for m in metrics if m.compile_id and m.recompile_reason]
    inductor, autograd = dynamo.counters["inductor"], dynamo.counters["aot_autograd"]
    cache = None
    if inductor["fxgraph_cache_miss"]:
        cache = "cold"
    elif inductor["fxgraph_cache_hit"] or autograd["autograd_cache_hit"]:
        cache = "warm"
    return {
        "graphs": compiled_graphs(),
        "recompilations": len(set(again)),
        "cache": cache,
    }
