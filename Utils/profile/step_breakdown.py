"""Break profiled steps down by kind of work, from torch.profiler's own events.

On a CPU an operator's self time is its kind's. On a GPU it is the time of the kernels, copies and
fills that it launched, each moment counted once. The rest of a step is `idle`.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from math import nan

import pandas as pd
from torch.autograd import DeviceType

from Utils.base.units import MIB
from Utils.device.kernel_kinds import KERNELS, KINDS, PARTS, WHOLE, kernel_kind, operator_kind
from Utils.profile import operator_work

WAIT = "wait for the batch"  # the range around it in the trace
OPTIMIZER = "Optimizer."  # ranges that torch.optim makes around step and zero_grad
COLLECTIVES = r"(gloo|mpi):"  # ranges of other threads of the host
MOVES = {"transfers": r"HtoD|DtoH|Host", "embedding": "embedding", "on the device": ""}
SHORT_US = 10.0  # kernels and operators below it last about as long as their launch
STARVED = 0.1  # of the step; a GPU that waits less is not bound by launches
KNOWN = 0.8  # of a kind's time; with less known work there is no share of the ceiling
LITTLE_ARITHMETIC = ("normalization", "elementwise", "optimizer", "copies")  # of any shapes
LONGEST = 10  # operators that are kept

kind_of_operator = cache(operator_kind)  # hundreds of names, tens of thousands of events


@dataclass(frozen=True)
class KindTime:
    """A kind of work in a step.

    parts: ms by part: data, dispatch, python of idle; loss, softmax, norms, sums of reductions;
    transfers, embedding, on the device of copies. ceiling_share: time at the measured ceilings /
    time taken. bound: compute, memory, launch or None.
    """

    ms: float
    share: float
    parts: dict
    ceiling_share: float | None
    bound: str | None
    forecast_ms: float | None = None


@dataclass(frozen=True)
class Breakdown:
    """Sums over profiled steps, per step.

    kinds: KindTime of each of KINDS. operators: the longest, dicts of name (with its first tensors'
    shapes), kind, ms and calls. gap_ms: the longest stretch of the median step in which the host
    runs Python or sleeps; gap_between: the events around it. reads: tensor values that the host
    reads, without the optimizer's. communication_ms: of collectives; hidden: the share that
    overlaps with computation. peak_mib: the most that was allocated in the first step, above its
    start; growth_mib: the smallest growth of a step.
    """

    steps: int
    mean_step_ms: float
    kinds: dict
    operators: list
    gap_ms: float
    gap_between: str
    reads: float
    communication_ms: float | None
    hidden: float | None
    peak_mib: float | None
    growth_mib: float | None


@dataclass(eq=False)
class Task:
    """A call of an operator, a kernel or the optimizer: what time is spent on.

    compute_us, memory_us: the least that its arithmetic and its memory can take. closed: all that
    happens within belongs to it. around: the task of the same kind that called it. us: within the
    steps the self times of its operators, or its kernels' times; short_us: of the short ones;
    within_us: what tasks of its kind within took.
    """

    kind: str
    part: str = ""
    name: str = ""
    compute_us: float = nan
    memory_us: float = nan
    closed: bool = False
    around: object = None
    us: float = 0.0
    short_us: float = 0.0
    within_us: float = 0.0


def break_down(events, kineto_events=(), needs=(), ceilings=None, update_bytes=0):
    """Return the Breakdown of N + 1 profiled steps: N are summed, from the start of the first to
    the start of the last.

    events: of `profile.events()`, a parent before its children. kineto_events: for what these lack
        in torch 2.11: types of operands, and allocations one by one. needs: those of the script.
        ceilings: of Utils.device, or None. update_bytes: the least that the optimizer reads and
        writes in a step. Raises ValueError if there are fewer than two steps.
    """
    timeline = Timeline(events, kineto_events, needs, ceilings)
    steps = len(timeline.starts) - 1
    spent_us = timeline.spent_us()
    span_us = spent_us.total()
    waits_us = spent_us["idle", "dispatch"] + spent_us["idle", "python"]
    starved = not timeline.device or waits_us > STARVED * span_us
    tasks = pd.DataFrame(map(vars, timeline.tasks)).query("us > 0")
    kinds = {}
    for kind in KINDS:
        us_by_part = {part: us for (of, part), us in spent_us.items() if of == kind and us}
        total_us = sum(us_by_part.values())
        ceiling_share, bound = None, None
        if total_us and kind != "idle":
            ceiling_share, bound = _limits(kind, tasks[tasks.kind == kind], total_us, starved)
        if kind == "optimizer" and total_us and ceilings:
            ceiling_share = steps * update_bytes / ceilings["bandwidth_gb_s"] / 1e3 / total_us
        parts = {part: us / steps / 1e3 for part, us in us_by_part.items() if part}
        ms = total_us / steps / 1e3
        kinds[kind] = KindTime(ms, total_us / span_us, parts, ceiling_share, bound)
    busy = tasks[tasks.kind != "idle"].groupby(["name", "kind"]).us
    longest = pd.DataFrame({"ms": busy.sum() / steps / 1e3, "calls": busy.size() / steps})
    return Breakdown(
        steps=steps,
        mean_step_ms=span_us / steps / 1e3,
        kinds=kinds,
        operators=longest.nlargest(LONGEST, "ms").reset_index().to_dict("records"),
        reads=timeline.reads() / steps,
        **_gap(timeline),
        **_communication(timeline, steps),
        **_memory(timeline, kineto_events),
    )


class Timeline:
    """The events of profiled steps, and the tasks that their time is spent on.

    host: events of the threads that count, on a CPU the loop's alone. device: kernels, copies and
    fills of a GPU. starts: of the steps on the host, in microseconds. start_us, end_us: of what is
    summed; on a GPU of the first thing that a step launched there, as the host may be ahead.
    """

    def __init__(self, events, kineto_events, needs, ceilings):
        typed = [event for event in kineto_events if event.dtypes()]
        self.dtypes = {(event.correlation_id(), event.name()): event.dtypes() for event in typed}
        self.limits = (needs, ceilings)
        self.threads = [e for e in events if _on_host(e) and e.name != "[memory]"]
        self.device = [e for e in events if not _on_host(e) and not e.is_user_annotation]
        self.steps = [e for e in self.threads if e.name.startswith("ProfilerStep")]
        if len(self.steps) < 2:
            raise ValueError("the profile holds no two steps")
        self.starts = [event.time_range.start for event in self.steps]
        loop = self.steps[0].thread
        self.host = [e for e in self.threads if self.device or e.thread == loop]
        self.data = Task("idle", "data", closed=True)
        self.dispatch = Task("idle", "dispatch")
        self.python = Task("idle", "python")
        self.tasks = [self.data, self.dispatch]
        self.task_of = {}
        for event in self.host:
            self.task_of[event] = self._host_task(event)
        first_us = dict(enumerate(self.starts)) | self._assign_device()
        self.start_us = first_us[0]
        self.end_us = first_us[len(self.starts) - 1]
        for event in self.device or self.host:
            if self.start_us <= event.time_range.start < self.end_us:
                us = event.time_range.elapsed_us() if self.device else event.self_cpu_time_total
                task = self.task_of[event]
                task.us += us
                task.short_us += us if us < SHORT_US else 0.0
                while task := task.around:
                    task.within_us += us

    def _host_task(self, event):
        """Return the task that an operator or range belongs to: the innermost operator around it
        that computes something, but attention, the embedding and the optimizer as a whole."""
        around = self.task_of.get(event.cpu_parent, self.python)
        if around.closed:
            return around
        if event.name.startswith(WAIT) and not self.device:
            return self.data
        if event.name.startswith(OPTIMIZER):
            return self._new_task("optimizer", event, closed=True)
        if event.is_user_annotation:
            return around
        kind = kind_of_operator(event.name)
        if not kind:
            return self.dispatch if around is self.python else around
        task = self._new_task(kind, event, closed=bool(re.search(WHOLE, event.name)))
        task.around = around if around.kind == kind else None
        return task

    def _assign_device(self):
        """Give what ran on the device to the operators that launched it. Return, by the step's
        number, when the first thing that it launched began there."""
        launches = {e.id: e for e in self.host if re.match(r"cu|hip", e.name)}
        first_us = {}
        for event in sorted(self.device, key=lambda event: event.time_range.start):
            launch = launches.get(event.id)
            self.task_of[event] = self._device_task(event, self.task_of.get(launch, self.python))
            if launch:
                step = bisect_right(self.starts, launch.time_range.start) - 1
                first_us.setdefault(step, event.time_range.start)
        return first_us

    def _device_task(self, event, launcher):
        if re.search(KERNELS["communication"], event.name, re.I):
            return self._new_task("communication", event)
        if launcher.kind == "optimizer":
            return launcher
        if re.match(r"Mem(cpy|set) ", event.name):
            return self._new_task("copies", event)
        if launcher.kind == "idle":
            return self._new_task(kernel_kind(event.name), event)
        return launcher

    def _new_task(self, kind, event, closed=False):
        parts = {"normalization": PARTS, "copies": MOVES}.get(kind, {"": ""})
        part = next(part for part, words in parts.items() if re.search(words, event.name, re.I))
        operands = operator_work.tensors(event, self.dtypes.get((event.id, event.name), ()))
        least_us = operator_work.least_us(event.name, operands, *self.limits)
        task = Task(kind, part, operator_work.label(event.name, operands), *least_us, closed)
        self.tasks.append(task)
        return task

    def spent_us(self):
        """Return the microseconds of the steps by kind and part.

        On a GPU each moment goes to one kind, the first in the order of KINDS; the host's time
        counts only where the device has nothing to do, first of it the wait for data.
        """
        spent_us = Counter()
        if self.device:
            events_of = defaultdict(list)
            for event in self.device:
                events_of[self.task_of[event].kind, self.task_of[event].part].append(event)
            events_of["idle", "data"] = [e for e in self.host if e.name.startswith(WAIT)]
            events_of["idle", "dispatch"] = [e for e in self.host if not e.is_user_annotation]
            order = list(KINDS)
            counted = []
            for group in sorted(events_of, key=lambda group: (order.index(group[0]), group[1])):
                before_us = self.covered_us(counted)
                counted += events_of[group]
                spent_us[group] = self.covered_us(counted) - before_us
        else:
            for task in self.tasks:
                spent_us[task.kind, task.part] += task.us
        spent_us["idle", "python"] = max(0.0, self.end_us - self.start_us - spent_us.total())
        return spent_us

    def covered_us(self, events):
        """Return the time of the steps in which at least one of the events is under way."""
        covered_us = 0.0
        until_us = self.start_us
        for event in sorted(events, key=lambda event: event.time_range.start):
            end_us = min(event.time_range.end, self.end_us)
            covered_us += max(0.0, end_us - max(event.time_range.start, until_us))
            until_us = max(until_us, end_us)
        return covered_us

    def reads(self):
        """Return the number of tensor values that the host reads in the steps, as with .item()."""
        reads = [e for e in self.host if e.name == "aten::_local_scalar_dense"]
        ours = [e for e in reads if self.task_of[e].kind != "optimizer"]
        return sum(self.starts[0] <= e.time_range.start < self.starts[-1] for e in ours)


def _on_host(event):
    return event.device_type == DeviceType.CPU


def _limits(kind, tasks, total_us, starved):
    """Return the share of the ceiling and what bounds a kind, each None where unknown.

    tasks: of the kind, a DataFrame. starved: true if the device waits for launches.
    """
    # One that mostly calls others of its kind has their work.
    with_work = tasks[tasks.compute_us.notna() & (tasks.us > tasks.within_us)]
    least_us = with_work[["compute_us", "memory_us"]].max(axis=1)
    enough = with_work.us.sum() >= KNOWN * total_us
    ceiling_share = least_us.sum() / with_work.us.sum() if enough else None
    if starved and tasks.short_us.sum() > tasks.us.sum() / 2:
        return ceiling_share, "launch"
    if ceiling_share is None:
        return None, "memory" if kind in LITTLE_ARITHMETIC else None
    compute_us = least_us[with_work.compute_us > with_work.memory_us].sum()
    return ceiling_share, "compute" if compute_us > least_us.sum() / 2 else "memory"


def _gap(timeline):
    """Return the gap of `Breakdown`: no operator, no optimizer, no wait for data."""
    ranges = (WAIT, OPTIMIZER)
    host = timeline.host
    busy = [e for e in host if not e.is_user_annotation or e.name.startswith(ranges)]
    longest = []
    for step_start, step_end in pairwise(timeline.starts):
        gaps = []
        since = step_start
        after = "the beginning of the step"
        for event in busy:
            if event.time_range.start < step_end and event.time_range.end > since:
                gaps.append((event.time_range.start - since, f"{after} and {event.name}"))
                since = event.time_range.end
                after = event.name
        gaps.append((step_end - since, f"{after} and the end of the step"))
        longest.append(max(gaps))
    us, between = sorted(longest)[len(longest) // 2]
    return {"gap_ms": us / 1e3, "gap_between": between}


def _communication(timeline, steps):
    """Return the time of collectives on any stream or thread, and how much of it is hidden."""
    events = timeline.device or timeline.host
    computing = [e for e in events if timeline.task_of[e].kind not in ("communication", "idle")]
    collectives = [e for e in timeline.device if timeline.task_of[e].kind == "communication"]
    if not timeline.device:
        collectives = [e for e in timeline.threads if re.match(COLLECTIVES, e.name)]
    us = timeline.covered_us(collectives)
    if not us:
        return {"communication_ms": None, "hidden": None}
    hidden_us = us + timeline.covered_us(computing) - timeline.covered_us(collectives + computing)
    return {"communication_ms": us / steps / 1e3, "hidden": hidden_us / us}


def _memory(timeline, kineto_events):
    """Return the peak and the growth of `Breakdown`, None without allocations."""
    ranges = [e for e in kineto_events if e.name().startswith("ProfilerStep")]
    starts_ns = sorted({e.start_ns() for e in ranges if e.device_type() == DeviceType.CPU})
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in kineto_events
        if event.name() == "[memory]"
        and starts_ns[0] <= event.start_ns() < starts_ns[1]
        and (event.device_type() != DeviceType.CPU) == bool(timeline.device)
    )
    if not changes:
        return {"peak_mib": None, "growth_mib": None}
    held = accumulate((size for _, size in changes), initial=0)
    usage = "device_memory_usage" if timeline.device else "cpu_memory_usage"
    growth = min(getattr(event, usage) for event in timeline.steps[:-1])
    return {"peak_mib": max(held) / MIB, "growth_mib": growth / MIB}
