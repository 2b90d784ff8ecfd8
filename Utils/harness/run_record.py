"""Rows of a run, and its record.

The record has the measurements of all ranks and their quality, statistics of torch.compile,
threads, versions and environment variables.
"""

import contextlib
import os
import platform
import sys
import textwrap
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil
import torch
from torch.utils import collect_env

from Utils.base import files, paths
from Utils.base.errors import UserError, say
from Utils.base.text import plural, printable
from Utils.device import capabilities
from Utils.harness import memory_kinds, step_work
from Utils.harness.settings import Settings
from Utils.results import rows_file

DATA_SHARE = 0.1  # share of the timed steps; a run that waits longer for batches gets a note
SHAPE = ("batch_size", "seq_len", "model", "dataset")
OF_SCRIPT = ("base", "unit", "commit", *SHAPE, "requested_batch_size", "world_size")
PACKAGES = ("numpy", "triton", "bitsandbytes", "torchao", "datasets", "tiktoken")
VARIABLES = ("CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "TORCH", "TRITON_", "NCCL_")

# Limits of a clean run. Shares are of the time of its timed steps.
OTHER_CPU_SHARE = 0.05  # shells and daemons of an idle machine take less, a compiler takes more
STEAL_SHARE = 0.02  # lower: other processes may use idle cores, but stolen time is always lost
SLOWED_SHARE = 0.01  # a single short dip does not move the median
TICK_S = 0.01  # the kernel counts the time of a core in ticks
SLOWDOWNS = ("hw slowdown", "hw thermal slowdown", "sw thermal slowdown", "hw power brake slowdown")
SLOWDOWN_COUNTERS = {  # older drivers have the first, newer ones the others
    "thermal slowdown": (
        "thermal_violation_s",
        "sw_thermal_slowdown_s",
        "hw_thermal_slowdown_s",
    ),
    "power brake": ("hw_power_brake_slowdown_s",),
}
# A drift has to exceed both: a change too small to matter can be significant, a large one chance.
DRIFT = 0.05
DRIFT_P = 0.001


@dataclass(frozen=True)
class RankResult:
    """Measurements of one rank."""

    step_ms: list[float]
    data_ms: list[float]  # the part of each step spent waiting for data
    timed: list[bool]  # False for warm-up; the same on all ranks
    losses: list[float]  # nats, one per step
    memory: dict  # result of `memory_kinds.memory_by_kind`
    counters: dict  # growth of the device's counters over the timed steps
    readings: dict  # the device's readings after the run
    updated: list[int]  # numbers of the parameters that an optimizer has updated
    other_processes: list[str]  # on the device
    steps: int  # those that all runs have: without more for --min-seconds, fewer if it was cut
    held_out_loss: float | None = None  # nats
    node: int = 0  # number of the machine
    # loss: nats. gradient_norm: of all ranks' mean gradients, absent if they never exist at once.
    before_update: dict[str, float] = field(default_factory=dict)


def combine(
    args: Settings,
    ranks: list[RankResult],
    model: torch.nn.Module,
    optimizer: memory_kinds.Optimizers,
    dataset_facts: dict,
    flops_per_unit: float | None = None,
) -> tuple[list[dict], dict]:
    """Return (rows, record) of a run. Notes are added to args.outcome.

    ranks: in the order of their numbers.
    flops_per_unit: floating-point operations, if the model is not GPT.
    """
    # A step takes the time of the slowest rank; its loss is the mean.
    step_ms = np.max([rank.step_ms for rank in ranks], axis=0)
    data_ms = np.max([rank.data_ms for rank in ranks], axis=0)
    losses = np.mean([rank.losses for rank in ranks], axis=0)
    timed = np.array(ranks[0].timed)
    memory = max((rank.memory for rank in ranks), key=lambda memory: memory["peak_mib"])
    compiled = compilation()
    quality = run_quality(ranks, step_ms[timed].tolist())

    if not np.isfinite(losses).all():
        args.outcome.notes.append("the loss is not finite")
    if args.warmup and any(rank.counters.get("compiled_graphs") for rank in ranks):
        args.outcome.notes.append("torch.compile compiled in a timed step")
    swapped_mib = max(rank.counters.get("swapped_mib", 0) for rank in ranks)
    if swapped_mib >= 1:
        args.outcome.notes.append(f"the machine read {swapped_mib:,.0f} MiB from its swap")
    if compiled and compiled["recompilations"]:
        count = plural(compiled["recompilations"], "recompilation")
        args.outcome.notes.append(f"{count} by torch.compile; TORCH_LOGS=recompiles says why")
    waiting = data_ms[timed].sum() / step_ms[timed].sum()
    if waiting > DATA_SHARE:
        args.outcome.notes.append(f"waits for data {waiting:.0%} of the time")

    run_columns = row(args, "ok") | {
        "held_out_loss": ranks[0].held_out_loss,
        "first_step_s": _rounded(step_ms[0] / 1e3),
        "peak_memory_mib": memory["peak_mib"],
        "reserved_memory_mib": memory["reserved_mib"],
        "grade": quality["grade"],
    }
    rows = []
    for step, loss in enumerate(losses.tolist()):
        step_columns = {
            "step": step,
            "phase": "timed" if timed[step] else "warmup",
            "step_ms": _rounded(step_ms[step]),
            "data_ms": _rounded(data_ms[step]),
            "loss": loss,
        }
        rows.append(run_columns | step_columns)

    before_update = {}
    for name in ranks[0].before_update:
        mean = np.mean([rank.before_update[name] for rank in ranks])
        if np.isfinite(mean):
            before_update[name] = float(mean)

    full_record = {
        **args.identity.record,
        **record(args.replace(steps=ranks[0].steps), run_columns),
        "dataset_facts": dataset_facts,
        **memory_kinds.training_facts(model, optimizer, [rank.updated for rank in ranks]),
        "before_update": before_update,
        "memory": memory,
        "compile": compiled,
        "limits": step_work.limits(args, flops_per_unit),
        "quality": quality,
    }
    if len(ranks) > 1:
        full_record["ranks"] = [
            {
                "rank": number,
                "node": rank.node,
                "median_step_ms": _rounded(np.median(np.array(rank.step_ms)[timed])),
                "median_data_ms": _rounded(np.median(np.array(rank.data_ms)[timed])),
                "memory": rank.memory,
            }
            for number, rank in enumerate(ranks)
        ]
    return rows, full_record


def _rounded(number):
    return round(float(number), 4)


def row(args: Settings, status: str) -> dict:
    """Return the columns that all rows of a run share."""
    return {name: getattr(args, name) for name in ("run_id", "round", "seed", *OF_SCRIPT)} | {
        **args.identity.place,
        "technique": args.identity.label or args.technique,
        "status": status,
        "device": args.hardware.name,
        "torch": torch.__version__,
        "note": "; ".join(args.outcome.notes),
    }


def record(args: Settings, columns: dict) -> dict:
    """Return the record of a run, its line of results.jsonl: the columns of its rows, and more."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    versions["cudnn"] = torch.backends.cudnn.version()

    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLES) and os.sep not in value  # paths may contain a user name
    }
    return columns | {
        "source": args.source,
        "started": args.started.isoformat(),
        "ended": datetime.now(UTC).isoformat(),
        "command": [columns["technique"], *map(str, args.argv)],
        "settings": {
            "steps": args.steps,
            "warmup": args.warmup,
            **{name: columns[name] for name in (*SHAPE, "seed")},
        },
        "precision": capabilities.precision(args.hardware),
        "suite_id": os.environ.get("SUITE_ID"),
        "device": args.hardware.describe(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "versions": versions,
        "platform": platform.platform(),
        "variables": variables,
        "collect_env": _collect_env(),
    }


def record_end(args: Settings, status: str, reason: str) -> None:
    """Append the single row of a run without timing, and print the reason to stderr.

    Only the launcher knows such a run: it was another process, or it took no step.
    """
    note = textwrap.shorten(printable(reason), 300, placeholder=" ...")
    args.outcome.notes[:] = [note]
    args.outcome.is_recorded = True
    columns = row(args, status) | args.identity.columns
    full_record = record(args, columns) | args.identity.record
    rows_file.append(args.results_file, [columns], full_record)
    say(f"{columns['technique']}: {status.replace('_', ' ')}: {note}", sys.stderr)


def _collect_env():
    """Return the report of torch.utils.collect_env, which takes seconds.

    It is cached until a reboot or the installation of a package.
    """
    packages = Path(torch.__file__).parent.parent
    state = sys.executable, torch.__version__, psutil.boot_time(), packages.stat().st_mtime
    cached = paths.CACHE / f"collect_env-{paths.digest(repr(state))}.txt"
    with contextlib.suppress(OSError):
        return cached.read_text(errors="replace")

    report = collect_env.get_pretty_env_info()
    with contextlib.suppress(UserError):
        files.write(cached, report)
    return report


def compiled_graphs() -> int:
    """Return the number of graphs compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo.counters["stats"]["unique_graphs"] if dynamo else 0


def compilation() -> dict | None:
    """Return the statistics of torch.compile, or None if it has compiled nothing.

    graphs: compiled in this process.
    recompilations: graphs among them that were compiled after a guard failed.
    cache: "warm" if all graphs came from Inductor's cache on disk, "cold" if one did not, None for
        another backend.
    """
    if not compiled_graphs():
        return None

    # An id is "0/1": the second version of the first function, "0/1_1" another attempt at it.
    dynamo = sys.modules["torch._dynamo.utils"]
    metrics = dynamo.get_compilation_metrics()
    again = [m.compile_id.split("_")[0] for m in metrics if m.compile_id and m.recompile_reason]

    inductor = dynamo.counters["inductor"]
    autograd = dynamo.counters["aot_autograd"]
    cache = None
    if inductor["fxgraph_cache_miss"]:
        cache = "cold"
    elif inductor["fxgraph_cache_hit"] or autograd["autograd_cache_hit"]:
        cache = "warm"
    return {"graphs": compiled_graphs(), "recompilations": len(set(again)), "cache": cache}


def run_quality(ranks: list[RankResult], step_ms: list[float]) -> dict:
    """Return the quality of a run: that of rank 0, disturbed if any rank is.

    It follows from the device's counters and readings, and from step times: nothing is polled while
    steps run.

    step_ms: times of the timed steps, in order.
    """
    qualities = {}
    for number, rank in enumerate(ranks):
        counters = rank.counters
        if "all_cpu_s" in counters:
            # Ranks of one machine share its cores. Sum their CPU time, so that none of them counts
            # as another process, and grade the machine once.
            neighbours = [member for member in ranks if member.node == rank.node]
            if rank is not neighbours[0]:
                continue
            own_cpu_s = sum(member.counters["own_cpu_s"] for member in neighbours)
            counters = counters | {"own_cpu_s": own_cpu_s}
        qualities[number] = rank_quality(rank.other_processes, counters, rank.readings, step_ms)

    reasons = list(qualities[0]["reasons"])
    for number, quality in qualities.items():
        new = [reason for reason in quality["reasons"] if reason not in qualities[0]["reasons"]]
        reasons += [f"rank {number}: {reason}" for reason in new]
    return qualities[0] | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}


def rank_quality(
    other_processes: list[str], counters: dict, readings: dict, step_ms: list[float]
) -> dict:
    """Return the quality of one rank, for the record of its run.

    It has the device's readings, the growth of its counters, and what follows from them:
    reasons: short phrases, one for each disturbance.
    other_processes: on the GPU.
    mean_power_w: over the timed steps.
    other_cpu_share, steal_share: fractions of all cores' time.
    drift: relative change of the median step from the first third to the last.
    Unknown values are absent.

    other_processes, counters, readings: see RankResult.
    step_ms: times of the timed steps, in order.
    """
    values = readings | counters
    if "energy_j" in values:
        values["mean_power_w"] = values["energy_j"] / values["clock_s"]

    if values.get("all_cpu_s"):
        # This process's time is exact, that of the cores is counted in ticks.
        other_cpu_share = (values["busy_cpu_s"] - values["own_cpu_s"]) / values["all_cpu_s"]
        values["other_cpu_share"] = max(0.0, other_cpu_share - TICK_S / values["clock_s"])
        if "steal_s" in values:
            values["steal_share"] = values["steal_s"] / values["all_cpu_s"]

    third = len(step_ms) // 3
    if third:
        values["drift"] = np.median(step_ms[-third:]) / np.median(step_ms[:third]) - 1

    return {
        "reasons": list(_disturbances(other_processes, values, step_ms)),
        "other_processes": list(other_processes),
        **{name: round(x, 4) if isinstance(x, float) else x for name, x in values.items()},
    }


def _disturbances(other_processes, values, step_ms):
    """Yield the reasons that a run is disturbed. values: its quality without a grade."""
    if other_processes:
        first, *more = other_processes
        several = f" and {len(more)} more" if more else ""
        yield f"{first}{several} on the GPU"

    if values.get("other_cpu_share", 0) > OTHER_CPU_SHARE:
        yield f"other processes took {values['other_cpu_share']:.0%} of the cores"
    if values.get("steal_share", 0) > STEAL_SHARE:
        yield f"the hypervisor took {values['steal_share']:.0%} of the cores"

    yield from (reason for reason in values.get("throttle_reasons", ()) if reason in SLOWDOWNS)
    for cause, counters in SLOWDOWN_COUNTERS.items():
        share = max(values.get(counter, 0) for counter in counters) / values["clock_s"]
        if share > SLOWED_SHARE:
            yield f"{cause} in {share:.0%} of the time"

    drift = values.get("drift", 0)
    if abs(drift) > DRIFT and _has_trend(step_ms):
        change = "slowed" if drift > 0 else "sped up"
        yield f"{change} by {abs(drift):.0%} during the run"


def _has_trend(step_ms):
    """Return whether times rise or fall significantly, by Kendall's rank correlation with the step.

    No order of fewer than seven steps does.
    """
    from scipy.stats import kendalltau  # noqa: PLC0415  (takes a second, and few runs need it)

    return kendalltau(range(len(step_ms)), step_ms).pvalue < DRIFT_P
