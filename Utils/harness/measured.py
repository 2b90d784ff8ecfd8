"""Measurements of the ranks of a run, and the one result that they make together."""

import math
from typing import NamedTuple

import numpy as np

from Utils.harness import dynamo, footprint, quality, record, work

DATA_SHARE = 0.1  # of the timed steps; a run that waits longer for its batches says so


class Measured(NamedTuple):
    """Measurements of one rank.

    times, data_ms: milliseconds of each step, and those of them spent waiting for data.
    losses: nats, one a step. memory: of `footprint.memory`.
    counters: the device's, before and after the timed steps, and its readings at the end.
    compiled_late: whether something was compiled in a timed step.
    updated: numbers of the parameters that an optimizer has updated.
    place: node and device. others: processes that hold the device as well.
    """

    times: list
    data_ms: list
    losses: list
    memory: dict
    counters: tuple
    compiled_late: bool
    updated: list
    place: dict
    others: list


def result(args, ranks, model, optimizer, dataset_facts):
    """Return (rows, record) of a run from the Measured of its ranks, in their order.

    A step lasts as long as the slowest rank's; its loss is the ranks' mean. Notes go to args.notes.
    """
    times = [max(step) for step in zip(*(rank.times for rank in ranks), strict=True)]
    data_ms = [max(step) for step in zip(*(rank.data_ms for rank in ranks), strict=True)]
    losses = [sum(step) / len(ranks) for step in zip(*(r.losses for r in ranks), strict=True)]
    memory = max((rank.memory for rank in ranks), key=lambda memory: memory["peak_mib"])
    timed = times[args.warmup :]
    if not all(map(math.isfinite, losses)):
        args.notes.append("the loss is not finite")
    if any(rank.compiled_late for rank in ranks):
        args.notes.append("torch.compile compiled in a timed step")
    waiting = sum(data_ms[args.warmup :]) / sum(timed)
    if waiting > DATA_SHARE:
        args.notes.append(f"waits for data {waiting:.0%} of the time")
    graded = grade(ranks, timed)
    constant = {
        **record.row(args, "ok"),
        "first_step_s": round(times[0] / 1e3, 4),
        "peak_memory_mib": memory["peak_mib"],
        "reserved_memory_mib": memory["reserved_mib"],
        "grade": graded["grade"],
    }
    rows = [
        {
            **constant,
            "step": step,
            "phase": "warmup" if step < args.warmup else "timed",
            "step_ms": round(times[step], 4),
            "data_ms": round(data_ms[step], 4),
            "loss": loss,
        }
        for step, loss in enumerate(losses)
    ]
    known = {
        **record.record(args, "ok"),
        "dataset_facts": dataset_facts,
        **footprint.training(model, optimizer, [rank.updated for rank in ranks]),
        "memory": memory,
        "compile": dynamo.compilation(),
        "limits": work.describe(args),
        "quality": graded,
    }
    if len(ranks) > 1:
        known["ranks"] = [_describe(args, number, rank) for number, rank in enumerate(ranks)]
    return rows, known


def _describe(args, number, rank):
    return {
        "rank": number,
        **rank.place,
        "median_step_ms": round(float(np.median(rank.times[args.warmup :])), 4),
        "median_data_ms": round(float(np.median(rank.data_ms[args.warmup :])), 4),
        "memory": rank.memory,
    }


def grade(ranks, timed):
    """Return the quality of a run: that of rank 0, tainted by what taints any other rank.

    timed: milliseconds of the timed steps. The ranks of one machine share its cores, so their CPU
    time is summed, and none of them is another process to the others.
    """
    found = {}
    for number, rank in enumerate(ranks):
        before, after, readings = rank.counters
        here = [other for other in ranks if other.place["node"] == rank.place["node"]]
        if "own_cpu_s" in after and len(here) > 1:
            if rank is not here[0]:
                continue
            before, after = (
                ends | {"own_cpu_s": sum(other.counters[at]["own_cpu_s"] for other in here)}
                for at, ends in enumerate((before, after))
            )
        found[number] = quality.describe(rank.others, before, after, readings, timed)
    more = [
        f"rank {number}: {reason}"
        for number, other in found.items()
        for reason in other["reasons"]
        if reason not in found[0]["reasons"]
    ]
    reasons = found[0]["reasons"] + more
    return found[0] | {"reasons": reasons, "grade": "tainted" if reasons else "clean"}
