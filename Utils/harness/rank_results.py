"""Measurements of each rank of a run, combined into its rows and its record."""

from dataclasses import dataclass

import numpy as np

from Utils.base.text import plural
from Utils.harness import compile_stats, memory_kinds, run_quality, run_record, step_work

DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for batches gets a note


@dataclass(frozen=True)
class RankResult:
    """Measurements of one rank."""

    step_ms: list  # of each step
    data_ms: list  # of each step: the part spent waiting for data
    timed: list  # True for each timed step, False for warm-up; the same on all ranks
    losses: list  # nats, one per step
    held_out_loss: float | None  # nats
    memory: dict  # of `memory_kinds.memory`
    counters_before: dict  # of the device, before the timed steps
    counters_after: dict
    readings: dict  # of the device, at the end
    compiled_late: bool  # whether something was compiled in a timed step
    updated: list  # numbers of the parameters that an optimizer has updated
    node: str  # where the rank ran
    device: str
    other_processes: list  # on the device

    def describe(self):
        """Return what a run's record has of this rank."""
        timed = np.array(self.timed)
        return {
            "node": self.node,
            "device": self.device,
            "median_step_ms": round(float(np.median(np.array(self.step_ms)[timed])), 4),
            "median_data_ms": round(float(np.median(np.array(self.data_ms)[timed])), 4),
            "memory": self.memory,
        }


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
    if any(rank.compiled_late for rank in ranks):
        args.notes.append("torch.compile compiled in a timed step")
    compiled = compile_stats.compilation()
    if compiled and (count := compiled["recompilations"]):
        graphs = plural(count, "recompilation")
        args.notes.append(f"{graphs} by torch.compile; TORCH_LOGS=recompiles says why")
    waiting = data_ms[timed].sum() / step_ms[timed].sum()
    if waiting > DATA_SHARE:
        args.notes.append(f"waits for data {waiting:.0%} of the time")
    quality = grade(ranks, step_ms[timed].tolist())
    of_the_run = run_record.row(args, "ok") | {
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
    record = {
        **run_record.record(args, "ok"),
        "dataset_facts": dataset_facts,
        **memory_kinds.training(model, optimizer, [rank.updated for rank in ranks]),
        "memory": memory,
        "compile": compiled,
        "limits": step_work.describe(args, flops_per_unit),
        "quality": quality,
    }
    if len(ranks) > 1:
        record["ranks"] = [{"rank": n, **rank.describe()} for n, rank in enumerate(ranks)]
    return rows, record


def grade(ranks, timed_ms):
    """Return the quality of a run: that of rank 0, tainted where any rank is.

    Ranks of one machine share its cores: their CPU time is summed, so that none counts as another
    process.
    """
    qualities = {}
    for number, rank in enumerate(ranks):
        before, after = rank.counters_before, rank.counters_after
        same_node = [other for other in ranks if other.node == rank.node]
        if "own_cpu_s" in after and len(same_node) > 1:
            if rank is not same_node[0]:
                continue
            before = before | {"own_cpu_s": sum(r.counters_before["own_cpu_s"] for r in same_node)}
            after = after | {"own_cpu_s": sum(r.counters_after["own_cpu_s"] for r in same_node)}
        qualities[number] = run_quality.describe(
            rank.other_processes, before, after, rank.readings, timed_ms
        )
    reasons = list(qualities[0]["reasons"])
    for number, quality in qualities.items():
        new = [reason for reason in quality["reasons"] if reason not in qualities[0]["reasons"]]
        reasons += [f"rank {number}: {reason}" for reason in new]
    return qualities[0] | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}
