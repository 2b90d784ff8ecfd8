"""Break profiled steps down by kind of work, from the trace that torch.profiler exports.

On a CPU the self time of an operator belongs to its kind. On a GPU the kernels, copies and fills
that it launched do, and each moment is counted once. The rest of a step is `idle`.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from tools.forecast.kernel_kinds import (
    KERNELS,
    KINDS,
    PART_PATTERNS,
    WITH_CHILDREN,
    kernel_kind,
    operator_kind,
)
from tools.own_script.profiled_steps import WAIT

# Categories of a trace.
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RANGE = "user_annotation"
ON_HOST = (RANGE, "cpu_op", "cuda_runtime", "cuda_driver")
WAITS = (WAIT, "enumerate(DataLoader)")  # ranges around the wait for a batch
OPTIMIZER = "Optimizer."  # ranges that torch.optim makes around step and zero_grad
COLLECTIVES = r"(gloo|mpi):"  # ranges that end in another thread
MOVES = {"transfers": r"HtoD|DtoH|Host", "embedding": "embedding", "on the device": ""}
ROUNDING_US = 0.01  # rounding error of a trace's times
LONGEST = 10  # number of operators that are kept
SHAPES = 3  # number of shapes in a label: a bias comes before the factors of a product

kind_of_operator = cache(operator_kind)  # hundreds of names, tens of thousands of events


@dataclass(frozen=True)
class KindTime:
    """A kind of work in a step.

    parts: ms by part. Idle has data, host; normalization has loss, softmax, norms,
    sums; copies have transfers, embedding, on the device.
    """

    ms: float
    share: float  # share of the step
    parts: dict


@dataclass(frozen=True)
class Breakdown:
    """Sums over profiled steps, per step."""

    steps: int
    mean_step_ms: float
    kinds: dict  # KindTime of each of KINDS
    operators: list  # the longest: dicts of label, kind, ms, calls


@dataclass(eq=False)
class Work:
    """A call of an operator, a kernel or the optimizer, which the time of events is spent on."""

    kind: str
    name: str
    shapes: list = ()  # of its arguments, [] for one that is not a tensor
    closed: bool = False  # nested operators belong to it

    @property
    def label(self):
        """Its name with the shapes of its first tensors, "aten::mm 64x768 768x3072"."""
        shapes = ["x".join(map(str, shape)) for shape in self.shapes if shape]
        return " ".join([self.name, *shapes[:SHAPES]])

    @property
    def part(self):
        """The part of its kind, "" if the kind has no parts."""
        if self.kind == "idle":
            return self.name
        patterns = {"normalization": PART_PATTERNS, "copies": MOVES}.get(self.kind, {"": ""})
        return next(p for p, words in patterns.items() if re.search(words, self.name, re.I))


DATA = Work("idle", "data", closed=True)
HOST = Work("idle", "host")


def break_down(trace):
    """Return the Breakdown of N + 1 profiled steps, of which N are summed.

    A step lasts from its start to the start of the next one.

    trace: the traceEvents of a trace, with shapes. Raises ValueError if there are fewer than two
        steps.
    """
    # Spans of the host and of the device; an outer span comes before those within it.
    spans = [
        span | {"start": span["ts"], "end": span["ts"] + span["dur"], "us": span["dur"]}
        for span in trace
        if span.get("cat") in ON_HOST + ON_DEVICE
    ]
    spans.sort(key=lambda span: (span["start"], -span["end"]))
    on_device = [span for span in spans if span["cat"] in ON_DEVICE]
    on_host = [span for span in spans if span["cat"] in ON_HOST]

    # Operators, ranges and launches of the host, and the start of each step there.
    _assign_host(on_host, bool(on_device))
    host = _table(on_host)
    ranges = host[host["name"].str.startswith("ProfilerStep")]
    if len(ranges) < 2:
        raise ValueError("the profile holds no two steps")
    starts = ranges.start.to_numpy()
    steps = len(starts) - 1
    start_us = starts[0]
    end_us = starts[-1]

    # What ran on the GPU, where a step begins with the first event that it launched: the host may
    # be ahead. On a CPU what ran in the loop's thread.
    if on_device:
        _assign_device(on_device, on_host)
        events = _table(on_device)
        step = np.searchsorted(starts, events.launched, "right") - 1
        first_us = events.start.groupby(step).min()
        start_us = first_us.get(0, start_us)
        end_us = first_us.get(steps, end_us)
    else:
        events = host[host.tid == ranges.tid.iloc[0]]
    timed = events[events.start.between(start_us, end_us, "left")]

    # Microseconds by kind and part. The host has what is left, so it is not summed over events.
    if on_device:
        is_wait = host["name"].str.startswith(WAITS)
        waits = host[is_wait].assign(kind="idle", part="data")
        spent_us = _device_us(pd.concat([events, waits]), start_us, end_us)
    else:
        spent_us = timed.groupby(["kind", "part"]).us.sum().to_dict()
    spent_us.pop(("idle", "host"), None)
    remainder_us = end_us - start_us - sum(spent_us.values())
    spent_us["idle", "host"] = max(0.0, remainder_us)
    span_us = sum(spent_us.values())

    # Kinds of work.
    kinds = {}
    for kind in KINDS:
        us_by_part = {
            part: us for (part_kind, part), us in spent_us.items() if part_kind == kind and us
        }
        total_us = sum(us_by_part.values())
        parts = {part: us / steps / 1e3 for part, us in us_by_part.items() if part}
        kinds[kind] = KindTime(total_us / steps / 1e3, total_us / span_us, parts)

    # Calls of operators.
    calls = timed[timed.kind != "idle"].groupby(["label", "kind"])
    longest = pd.DataFrame(
        {"ms": calls.us.sum() / steps / 1e3, "calls": calls.work.nunique() / steps}
    )
    return Breakdown(
        steps=steps,
        mean_step_ms=span_us / steps / 1e3,
        kinds=kinds,
        operators=longest.nlargest(LONGEST, "ms").reset_index().to_dict("records"),
    )


def _assign_host(spans, on_gpu):
    """Add to each span of the host its work, and reduce its time to its self time."""
    open_spans_by_thread = defaultdict(list)  # the innermost last
    for span in spans:
        if re.match(COLLECTIVES, span["name"]):
            span["work"] = Work("communication", span["name"])
            span["us"] = 0.0
            continue

        open_spans = open_spans_by_thread[span["tid"]]
        while open_spans and span["end"] > open_spans[-1]["end"] + ROUNDING_US:
            open_spans.pop()

        work_around = HOST
        if open_spans:
            open_spans[-1]["us"] -= span["dur"]
            work_around = open_spans[-1]["work"]
        span["work"] = _host_work(span, work_around, on_gpu)
        open_spans.append(span)


def _host_work(span, around, on_gpu):
    """Return the Work that an operator or range belongs to.

    That is the innermost operator around it that computes something. Attention, the embedding and
    the optimizer count as a whole. around: the Work of the span around it.
    """
    # Ranges, and what is within an operator that counts as a whole.
    name = span["name"]
    if around.closed:
        return around
    if name.startswith(WAITS) and not on_gpu:
        return DATA
    if name.startswith(OPTIMIZER):
        return Work("optimizer", name, closed=True)
    if span["cat"] == RANGE:
        return around

    # Operators: one that computes nothing belongs to the one around it.
    kind = kind_of_operator(name)
    if not kind:
        return around
    shapes = span.get("args", {}).get("Input Dims", ())
    return Work(kind, name, shapes, bool(re.search(WITH_CHILDREN, name)))


def _device_us(events, start_us, end_us):
    """Return the microseconds of a GPU's steps by kind and part.

    Each moment belongs to the first kind that is under way, in the order of KINDS. So the time of a
    kind is what it adds to the union of all kinds before it. Idle is the last kind: the wait for
    data counts only if the device has nothing to do.
    """
    kinds = [*KINDS]
    spent_us = {}
    groups = []
    for (number, part), group in events.groupby([events.kind.map(kinds.index), "part"]):
        groups.append(group)

        # The time in which at least one event of these groups is under way.
        started = pd.concat(groups).sort_values("start")
        ends = started.end.clip(start_us, end_us)
        uncovered_from = np.maximum(started.start, ends.cummax().shift(fill_value=start_us))
        union_us = (ends - uncovered_from).clip(lower=0).sum()
        spent_us[kinds[number], part] = union_us - sum(spent_us.values())
    return spent_us


def _assign_device(spans, on_host):
    """Add to each span of the device the work of the operator that launched it."""
    calls = [span for span in on_host if span["cat"].startswith("cuda")]
    launches = {span["args"].get("correlation"): span for span in calls}
    unknown_launch = {"work": HOST, "start": np.inf}

    for span in spans:
        name = span["name"]
        launch = launches.get(span["args"].get("correlation"), unknown_launch)
        work = launch["work"]
        if re.search(KERNELS["communication"], name, re.I):
            work = Work("communication", name)
        elif span["cat"] != "kernel" and work.kind != "optimizer":
            work = Work("copies", name)
        elif work.kind == "idle":
            work = Work(kernel_kind(name), name)
        span["work"] = work
        span["launched"] = launch["start"]


def _table(spans):
    works = [span["work"] for span in spans]
    return pd.DataFrame(spans).assign(
        kind=[work.kind for work in works],
        part=[work.part for work in works],
        label=[work.label for work in works],
    )
