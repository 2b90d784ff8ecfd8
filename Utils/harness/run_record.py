"""Rows of a run, and its record: measurements of all ranks and their quality, torch.compile's
statistics, threads, versions, variables.
"""

import contextlib
import hashlib
import math
import os
import platform
import statistics
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
from Utils.harness import memory_kinds, step_work

DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for batches gets a note
IDENTITY = ("run_id", "suite", "base", "parent", "change", "unit", "technique", "round", "commit")
SETTINGS = ("steps", "warmup", "batch_size", "seq_len", "model", "dataset", "seed")
SHAPE = ("batch_size", "requested_batch_size", "seq_len", "world_size", "model", "dataset", "seed")
VARIABLES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH", "TRITON_", "NCCL_")
OTHER_CPU_SHARE = 0.05  # shells and daemons of an idle machine stay well below, a compiler not
STEAL_SHARE = 0.02  # lower: other processes may use idle cores, stolen time is always lost
SHORTEST_S = 1.0  # the kernel counts in ticks of up to 10 ms: too coarse for shorter runs
SLOWED_SHARE = 0.01  # a single short dip does not move the median
SLOWDOWNS = ("hw slowdown", "hw thermal slowdown", "sw thermal slowdown", "hw power brake slowdown")
SLOWED = {  # counters: an older driver's, and a newer one's
    "thermal_violation_s": "thermal slowdown",
    "sw_thermal_slowdown_s": "thermal slowdown",
    "hw_thermal_slowdown_s": "thermal slowdown",
    "hw_power_brake_slowdown_s": "power brake",
}
# Both are required: a change too small to matter can be significant, and a large one be chance.
DRIFT = 0.05
DRIFT_P = 0.001
DRIFT_STEPS = 8  # no order of fewer steps has a p-value below DRIFT_P


@dataclass(frozen=True)
class RankResult:
    """Measurements of one rank."""

    step_ms: list  # of each step
    data_ms: list  # of each step: the part spent waiting for data
    timed: list  # True for each timed step, False for warm-up; the same on all ranks
    losses: list  # nats, one per step
    memory: dict  # of `memory_kinds.memory`
    counters: dict  # of the device: growth over the timed steps
    readings: dict  # of the device, at the end
    updated: list  # numbers of the parameters that an optimizer has updated
    other_processes: list  # on the device
    held_out_loss: float | None = None  # nats
    node: int = 0  # number of the machine


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
    quality = run_quality(ranks, step_ms[timed].tolist())
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
        "suite_id": os.environ.get("SUITE_ID"),
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
    """Return the report of torch.utils.collect_env, cached until a reboot or the installation of a
    package: it takes seconds.
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
    return {"graphs": compiled_graphs(), "recompilations": len(set(again)), "cache": cache}


def run_quality(ranks, step_ms):
    """Return the quality of a run: that of rank 0, tainted where any rank is.

    It comes from counters and readings of the device, and from the step times: nothing is polled
    while steps run. ranks: their RankResults. step_ms: as of `rank_quality`. Ranks of one machine
    share its cores: their CPU time is summed, so that none counts as another process.
    """
    qualities = {}
    for number, rank in enumerate(ranks):
        counters = rank.counters
        if "own_cpu_s" in counters:
            same_node = [member for member in ranks if member.node == rank.node]
            if rank is not same_node[0]:
                continue
            own_cpu_s = sum(member.counters["own_cpu_s"] for member in same_node)
            counters = counters | {"own_cpu_s": own_cpu_s}
        qualities[number] = rank_quality(rank.other_processes, counters, rank.readings, step_ms)
    reasons = list(qualities[0]["reasons"])
    for number, quality in qualities.items():
        new = [reason for reason in quality["reasons"] if reason not in qualities[0]["reasons"]]
        reasons += [f"rank {number}: {reason}" for reason in new]
    return qualities[0] | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}


def rank_quality(other_processes, counters, readings, step_ms):
    """Return the quality of a run for its record, a dict without values that are not known.

    grade ("clean" or "tainted"), reasons (short phrases), other_processes (on the GPU); the
    device's readings; over the timed steps the growth of its counters, mean_power_w,
    other_cpu_share and steal_share (fractions of all cores' time), and drift (relative change of
    the median step from the first third to the last).

    other_processes, counters, readings: of a RankResult. step_ms: of the timed steps, in order.
    """
    facts = readings | counters
    if "energy_j" in facts:
        facts["mean_power_w"] = facts["energy_j"] / facts["clock_s"]
    if facts.get("all_cpu_s") and facts["clock_s"] >= SHORTEST_S:
        # Can be below 0: own time is exact, that of the cores is counted in ticks.
        other_cpu_s = max(0.0, facts["busy_cpu_s"] - facts["own_cpu_s"])
        facts["other_cpu_share"] = other_cpu_s / facts["all_cpu_s"]
        if "steal_s" in facts:
            facts["steal_share"] = facts["steal_s"] / facts["all_cpu_s"]
    third = len(step_ms) // 3
    if third:
        first, last = statistics.median(step_ms[:third]), statistics.median(step_ms[-third:])
        facts["drift"] = last / first - 1
    reasons = list(_taint_reasons(other_processes, facts, step_ms))
    return {
        "grade": "tainted" if reasons else "clean",
        "reasons": reasons,
        "other_processes": list(other_processes),
        **{name: round(x, 4) if isinstance(x, float) else x for name, x in facts.items()},
    }


def _taint_reasons(other_processes, facts, step_ms):
    if other_processes:
        more = len(other_processes) - 1
        yield f"{other_processes[0]}{f' and {more} more' if more else ''} on the GPU"
    if facts.get("other_cpu_share", 0) > OTHER_CPU_SHARE:
        yield f"other processes took {facts['other_cpu_share']:.0%} of the cores"
    if facts.get("steal_share", 0) > STEAL_SHARE:
        yield f"the hypervisor took {facts['steal_share']:.0%} of the cores"
    yield from (reason for reason in facts.get("throttle_reasons", ()) if reason in SLOWDOWNS)
    for cause in dict.fromkeys(SLOWED.values()):
        counters = [name for name in SLOWED if SLOWED[name] == cause]
        share = max(facts.get(name, 0) for name in counters) / facts["clock_s"]
        if share > SLOWED_SHARE:
            yield f"{cause} in {share:.0%} of the time"
    n = len(step_ms)
    if n >= DRIFT_STEPS and abs(facts["drift"]) > DRIFT:
        # Kendall's rank correlation of time and step, by its normal approximation.
        ordered = np.triu(np.sign(np.subtract.outer(step_ms, step_ms))).sum()
        z = abs(ordered) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        if math.erfc(z / math.sqrt(2)) < DRIFT_P:
            change = "slowed" if facts["drift"] > 0 else "sped up"
            yield f"{change} by {abs(facts['drift']):.0%} during the run"
