"""Measurements of each rank of a run, combined into one result."""

import math
from typing import NamedTuple

import numpy as np

from Utils.harness import compile_stats, memory_kinds, run_quality, run_record, step_work

DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for batches gets a note


class Measured(NamedTuple):
    """Measurements of one rank.

    times, data_ms: milliseconds of each step, and the part spent waiting for data.
    timed: True for each timed step, False for warm-up; the same on all ranks.
    losses: nats, one per step. held_out: of `held_out.loss`. memory: of `footprint.memory`.
    counters: of the device, before and after the timed steps, and its readings at the end.
    compiled_late: True where something was compiled in a timed step.
    updated: numbers of the parameters that an optimizer has updated.
    place: node and device. others: other processes on the device.
    """

    times: list
    data_ms: list
    timed: list
    losses: list
    held_out: float | None
    memory: dict
    counters: tuple
    compiled_late: bool
    updated: list
    place: dict
    others: list


def result(args, ranks, model, optimizer, dataset_facts, flops=None):
    """Return (rows, record) of a run from the Measured of each rank, in order.

    A step takes the time of the slowest rank; its loss is the mean. Notes go to args.notes.
    flops: of `flops.per_unit`.
    """
    times = [max(step) for step in zip(*(rank.times for rank in ranks), strict=True)]
    data_ms = [max(step) for step in zip(*(rank.data_ms for rank in ranks), strict=True)]
    losses = [sum(step) / len(ranks) for step in zip(*(r.losses for r in ranks), strict=True)]
    memory = max((rank.memory for rank in ranks), key=lambda memory: memory["peak_mib"])
    phases = ["timed" if counted else "warmup" for counted in ranks[0].timed]
    timed = [ms for ms, phase in zip(times, phases, strict=True) if phase == "timed"]
    if not all(map(math.isfinite, losses)):
        args.notes.append("the loss is not finite")
    if any(rank.compiled_late for rank in ranks):
        args.notes.append("torch.compile compiled in a timed step")
    waits = [ms for ms, phase in zip(data_ms, phases, strict=True) if phase == "timed"]
    waiting = sum(waits) / sum(timed)
    if waiting > DATA_SHARE:
        args.notes.append(f"waits for data {waiting:.0%} of the time")
    graded = grade(ranks, timed)
    constant = {
        **run_record.row(args, "ok"),
        "held_out_loss": ranks[0].held_out,
        "first_step_s": round(times[0] / 1e3, 4),
        "peak_memory_mib": memory["peak_mib"],
        "reserved_memory_mib": memory["reserved_mib"],
        "grade": graded["grade"],
    }
    rows = [
        {
            **constant,
            "step": step,
            "phase": phases[step],
            "step_ms": round(times[step], 4),
            "data_ms": round(data_ms[step], 4),
            "loss": loss,
        }
        for step, loss in enumerate(losses)
    ]
    known = {
        **run_record.record(args, "ok"),
        "dataset_facts": dataset_facts,
        **memory_kinds.training(model, optimizer, [rank.updated for rank in ranks]),
        "memory": memory,
        "compile": compile_stats.compilation(),
        "limits": step_work.describe(args, flops),
        "quality": graded,
    }
    if len(ranks) > 1:
        known["ranks"] = [_describe(number, rank) for number, rank in enumerate(ranks)]
    return rows, known


def _describe(number, rank):
    timed = np.array(rank.timed)
    return {
        "rank": number,
        **rank.place,
        "median_step_ms": round(float(np.median(np.array(rank.times)[timed])), 4),
        "median_data_ms": round(float(np.median(np.array(rank.data_ms)[timed])), 4),
        "memory": rank.memory,
    }


def grade(ranks, timed):
    """Return the quality of a run: that of rank 0, tainted where any rank is.

    timed: milliseconds of the timed steps. Ranks of one machine share its cores: their CPU time is
    summed, so that none counts as another process.
    """
    qualities = {}
    for number, rank in enumerate(ranks):
        before, after, readings = rank.counters
        local = [other for other in ranks if other.place["node"] == rank.place["node"]]
        if "own_cpu_s" in after and len(local) > 1:
            if rank is not local[0]:
                continue
            before, after = (
                ends | {"own_cpu_s": sum(other.counters[at]["own_cpu_s"] for other in local)}
                for at, ends in enumerate((before, after))
            )
        qualities[number] = run_quality.describe(rank.others, before, after, readings, timed)
    first = qualities[0]
    reasons = first["reasons"] + [
        f"rank {number}: {reason}"
        for number, other in qualities.items()
        for reason in other["reasons"]
        if reason not in first["reasons"]
    ]
    return first | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}
