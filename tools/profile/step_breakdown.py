"""Break profiled steps down by kind of work, from the trace that torch.profiler exports.

On a CPU an operator's self time is its kind's. On a GPU it is the time of the kernels, copies and
fills that it launched, each moment counted once. The rest of a step is `idle`.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import nan, prod

import numpy as np
import pandas as pd

from tools.forecast.kernel_kinds import KERNELS, KINDS, PARTS, WHOLE, kernel_kind, operator_kind
from tools.own_script.profiled_steps import WAIT
from Utils.base.units import MIB

# Categories of a trace.
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
RANGE = "user_annotation"
ON_HOST = (RANGE, "cpu_op", "cuda_runtime", "cuda_driver")
WAITS = (WAIT, "enumerate(DataLoader)")  # ranges around the wait for a batch
OPTIMIZER = "Optimizer."  # ranges that torch.optim makes around step and zero_grad
COLLECTIVES = r"(gloo|mpi):"  # ranges that end in another thread
MOVES = {"transfers": r"HtoD|DtoH|Host", "embedding": "embedding", "on the device": ""}
BYTES = {"double": 8, "long int": 8, "long": 8, "float": 4, "int": 4}  # of C++'s types
BYTES |= {"c10::BFloat16": 2, "c10::Half": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1}
BYTES |= {"bool": 1, "unsigned char": 1, "signed char": 1}
PRECISIONS = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}
FACTORS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1}  # where the first stands
SCATTERED = r"index|gather|scatter|embedding|select_backward|slice_backward|cat|stack|sort"
REDUCED = r"^(sum|mean|nll_loss\w*|any|all|amax|norm)$"  # whose results are small
ROUNDING_US = 0.01  # of a trace's times
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
    transfers, embedding, on the device of copies.
    """

    ms: float
    share: float
    parts: dict
    ceiling_share: float | None  # time at the measured ceilings / time taken
    bound: str | None  # compute, memory or launch
    forecast_ms: float | None = None


@dataclass(frozen=True)
class Breakdown:
    """Sums over profiled steps, per step."""

    steps: int
    mean_step_ms: float
    kinds: dict  # KindTime of each of KINDS
    operators: list  # the longest, dicts of name with its first tensors' shapes, kind, ms, calls
    gap_ms: float  # the longest stretch of the median step with the host in Python or asleep
    gap_between: str  # the events around it
    reads: float  # tensor values that the host reads, without the optimizer's
    communication_ms: float | None  # of collectives
    hidden: float | None  # share of them that overlaps with computation
    peak_mib: float | None  # the most that was allocated in the first step, above its start
    growth_mib: float | None  # the smallest of a step


@dataclass(eq=False)
class Work:
    """A call of an operator, a kernel or the optimizer: what the time of events is spent on.

    operands: (shape, dtype) of its tensors; none where unknown, or where another of its kind within
    does its work.
    """

    kind: str
    name: str
    operands: tuple = ()
    closed: bool = False  # all that happens within belongs to it
    host_us: float = 0.0  # from start to end

    @property
    def part(self):
        if self.kind == "idle":
            return self.name
        patterns = {"normalization": PARTS, "copies": MOVES}.get(self.kind, {"": ""})
        return next(p for p, words in patterns.items() if re.search(words, self.name, re.I))


DATA = Work("idle", "data", closed=True)
DISPATCH = Work("idle", "dispatch")
PYTHON = Work("idle", "python")


def break_down(trace, needs=(), ceilings=None, update_bytes=0, forecast_ms=()):
    """Return the Breakdown of N + 1 profiled steps: N are summed, from the start of the first to
    the start of the last.

    trace: the traceEvents of a trace, with shapes and memory. needs: those of the script. ceilings:
        of Utils.device, or None. update_bytes: the least that the optimizer reads and writes in a
        step. forecast_ms: by kind. Raises ValueError if there are fewer than two steps.
    """
    timeline = Timeline(trace)
    steps = len(timeline.starts) - 1
    reads = timeline.host[timeline.host["name"] == "aten::_local_scalar_dense"]  # as by .item()
    reads = reads.start[reads.kind != "optimizer"]
    spent_us = timeline.spent_us()
    span_us = sum(spent_us.values())
    waits_us = spent_us.get(("idle", "dispatch"), 0.0) + spent_us["idle", "python"]
    starved = not timeline.on_gpu or waits_us > STARVED * span_us
    timed = timeline.timed
    tasks = timed[timed.kind != "idle"].groupby(["work", "kind"], sort=False).us.sum()
    tasks = tasks[tasks > 0].reset_index()
    tasks["name"] = [_label(work) for work in tasks.work]
    least_us = [_least_us(work, needs, ceilings) for work in tasks.work]
    tasks[["compute_us", "memory_us"]] = np.reshape(least_us, (-1, 2))
    kinds = {}
    for kind in KINDS:
        us_by_part = {part: us for (of, part), us in spent_us.items() if of == kind and us}
        total_us = sum(us_by_part.values())
        ceiling_share, bound = None, None
        if total_us and kind != "idle":
            ceiling_share, bound = _limits(kind, tasks[tasks.kind == kind], total_us)
            times_us = timed.us[timed.kind == kind]
            if starved and times_us[times_us < SHORT_US].sum() > times_us.sum() / 2:
                bound = "launch"
        if kind == "optimizer" and total_us and ceilings:
            ceiling_share = steps * update_bytes / ceilings["bandwidth_gb_s"] / 1e3 / total_us
        parts = {part: us / steps / 1e3 for part, us in us_by_part.items() if part}
        ms = total_us / steps / 1e3
        forecast = dict(forecast_ms).get(kind)
        kinds[kind] = KindTime(ms, total_us / span_us, parts, ceiling_share, bound, forecast)
    calls = tasks.groupby(["name", "kind"]).us
    longest = pd.DataFrame({"ms": calls.sum() / steps / 1e3, "calls": calls.size() / steps})
    return Breakdown(
        steps=steps,
        mean_step_ms=span_us / steps / 1e3,
        kinds=kinds,
        operators=longest.nlargest(LONGEST, "ms").reset_index().to_dict("records"),
        reads=int(reads.between(timeline.starts[0], timeline.starts[-1], "left").sum()) / steps,
        **timeline.gap(),
        **timeline.communication(),
        **timeline.memory(trace),
    )


class Timeline:
    """The events of profiled steps as tables, each with the Work that its time is spent on.

    threads: operators, ranges and launches of the host; host: those of the threads that count, on a
    CPU the loop's alone. events: what ran on a GPU; on a CPU host. timed: those that are summed.
    starts: of the steps on the host, in microseconds.
    """

    def __init__(self, trace):
        spans = [
            span | {"start": span["ts"], "end": span["ts"] + span["dur"], "us": span["dur"]}
            for span in trace
            if span.get("cat") in ON_HOST + ON_DEVICE
        ]
        spans.sort(key=lambda span: (span["start"], -span["end"]))
        on_device = [span for span in spans if span["cat"] in ON_DEVICE]
        on_host = [span for span in spans if span["cat"] in ON_HOST]
        self.on_gpu = bool(on_device)
        self._assign_host(on_host)
        self.threads = _table(on_host)
        ranges = self.threads[self.threads["name"].str.startswith("ProfilerStep")]
        if len(ranges) < 2:
            raise ValueError("the profile holds no two steps")
        self.starts = ranges.start.to_numpy()
        self.start_us, self.end_us = self.starts[0], self.starts[-1]
        if self.on_gpu:  # from the first thing that a step launched there: the host may be ahead
            _assign_device(on_device, on_host)
            self.host = self.threads
            self.events = _table(on_device)
            step = np.searchsorted(self.starts, self.events.launched, "right") - 1
            first_us = self.events.start.groupby(step).min()
            self.start_us = first_us.get(0, self.start_us)
            self.end_us = first_us.get(len(self.starts) - 1, self.end_us)
        else:
            self.host = self.threads[self.threads.tid == ranges.tid.iloc[0]]
            self.events = self.host
        self.timed = self.events[self.events.start.between(self.start_us, self.end_us, "left")]

    def _assign_host(self, spans):
        """Give operators, ranges and launches of the host their work, and take from their times
        those of what is within.
        """
        under_way = defaultdict(list)  # by thread, the innermost last
        for span in spans:
            if re.match(COLLECTIVES, span["name"]):
                span |= {"work": Work("communication", span["name"]), "us": 0.0}
                continue
            outer = under_way[span["tid"]]
            while outer and span["end"] > outer[-1]["end"] + ROUNDING_US:
                outer.pop()
            if outer:
                outer[-1]["us"] -= span["dur"]
            span["work"] = self._host_work(span, outer[-1]["work"] if outer else PYTHON)
            outer.append(span)

    def _host_work(self, span, around):
        """Return the Work that an operator or range belongs to: the innermost operator around it
        that computes something, but attention, the embedding and the optimizer as a whole.
        """
        name = span["name"]
        if around.closed:
            return around
        if name.startswith(WAITS) and not self.on_gpu:
            return DATA
        if name.startswith(OPTIMIZER):
            return Work("optimizer", name, closed=True)
        if span["cat"] == RANGE:
            return around
        kind = kind_of_operator(name)
        if not kind:
            return DISPATCH if around is PYTHON else around
        if kind == around.kind and span["dur"] > around.host_us / 2:
            around.operands = ()
        args = span.get("args", {})
        dtypes = args.get("Input type", ())
        pairs = zip(args.get("Input Dims", ()), dtypes, strict=False)
        operands = [(shape, dtype) for shape, dtype in pairs if dtype in BYTES]
        operands = () if "TensorList" in dtypes else operands
        return Work(kind, name, operands, bool(re.search(WHOLE, name)), span["dur"])

    def spent_us(self):
        """Return the microseconds of the steps by kind and part.

        On a GPU each moment goes to one kind, the first in the order of KINDS; the host's time
        counts only where the device has nothing to do, first of it the wait for data.
        """
        spent_us = {}
        if self.on_gpu:
            is_wait = self.host["name"].str.startswith(WAITS)
            waits = self.host[is_wait].assign(kind="idle", part="data")
            calls = self.host[self.host.cat != RANGE].assign(kind="idle", part="dispatch")
            events = pd.concat([self.events, waits, calls])
            counted = []
            for (number, part), group in events.groupby([events.kind.map([*KINDS].index), "part"]):
                before_us = sum(spent_us.values())
                counted.append(group)
                spent_us[[*KINDS][number], part] = self._covered_us(*counted) - before_us
        else:
            spent_us = self.timed.groupby(["kind", "part"]).us.sum().to_dict()
        spent_us["idle", "python"] = 0.0
        remainder_us = self.end_us - self.start_us - sum(spent_us.values())
        return spent_us | {("idle", "python"): max(0.0, remainder_us)}

    def _covered_us(self, *events):
        """Return the time of the steps in which at least one of the events is under way."""
        events = pd.concat(events).sort_values("start")
        ends = events.end.clip(self.start_us, self.end_us)
        since = np.maximum(events.start, ends.cummax().shift(fill_value=self.start_us))
        return (ends - since).clip(lower=0).sum()

    def gap(self):
        """Return the longest gap, without operator, optimizer or wait for data."""
        is_range = self.host.cat == RANGE
        busy = self.host[~is_range | self.host["name"].str.startswith((*WAITS, OPTIMIZER))]
        busy = busy[busy.end > busy.end.cummax().shift(fill_value=0)]  # not within another one
        longest = []
        for start, end in pairwise(self.starts):
            inside = busy[(busy.start < end) & (busy.end > start)]
            names = ["the beginning of the step", *inside["name"], "the end of the step"]
            gaps_us = np.subtract([*inside.start, end], [start, *inside.end])
            number = gaps_us.argmax()
            longest.append((gaps_us[number], f"{names[number]} and {names[number + 1]}"))
        us, between = sorted(longest)[len(longest) // 2]
        return {"gap_ms": us / 1e3, "gap_between": between}

    def communication(self):
        """Return the time of collectives on any stream or thread, and how much is hidden."""
        collectives = self.events[self.events.kind == "communication"]
        if not self.on_gpu:
            collectives = self.threads[self.threads["name"].str.match(COLLECTIVES)]
        computing = self.events[~self.events.kind.isin(["communication", "idle"])]
        us = self._covered_us(collectives)
        if not us:
            return {"communication_ms": None, "hidden": None}
        hidden_us = us + self._covered_us(computing) - self._covered_us(collectives, computing)
        ms = us / 1e3 / (len(self.starts) - 1)
        return {"communication_ms": ms, "hidden": hidden_us / us}

    def memory(self, trace):
        """Return the peak and the growth of `Breakdown`, None without allocations."""
        changes = [event["args"] | event for event in trace if event["name"] == "[memory]"]
        changes = [event for event in changes if (event["Device Type"] != 0) == self.on_gpu]
        changes.sort(key=lambda event: event["ts"])
        sizes = pd.Series([event["Bytes"] for event in changes], dtype=float)
        step = np.searchsorted(self.starts, [event["ts"] for event in changes], "right") - 1
        if 0 not in step:
            return {"peak_mib": None, "growth_mib": None}
        growths = sizes.groupby(step).sum().reindex(range(len(self.starts) - 1), fill_value=0)
        peak = sizes[step == 0].cumsum().max()
        return {"peak_mib": peak / MIB, "growth_mib": growths.min() / MIB}


def _assign_device(spans, on_host):
    """Give what ran on the device the work of the operators that launched it."""
    calls = [span for span in on_host if span["cat"].startswith("cuda")]
    launches = {span["args"].get("correlation"): span for span in calls}
    for span in spans:
        name = span["name"]
        launch = launches.get(span["args"].get("correlation"), {"work": PYTHON, "start": np.inf})
        work = launch["work"]
        if re.search(KERNELS["communication"], name, re.I):
            work = Work("communication", name)
        elif span["cat"] != "kernel" and work.kind != "optimizer":
            work = Work("copies", name)
        elif work.kind == "idle":
            work = Work(kernel_kind(name), name)
        span |= {"work": work, "launched": launch["start"]}


def _table(spans):
    works = [span["work"] for span in spans]
    return pd.DataFrame(spans).assign(kind=[w.kind for w in works], part=[w.part for w in works])


def _limits(kind, tasks, total_us):
    """Return the share of the ceiling and what bounds a kind, each None where unknown."""
    with_work = tasks[tasks.compute_us.notna()]
    if with_work.us.sum() < KNOWN * total_us:
        return None, "memory" if kind in LITTLE_ARITHMETIC else None
    least_us = with_work[["compute_us", "memory_us"]].max(axis=1)
    compute_us = least_us[with_work.compute_us > with_work.memory_us].sum()
    bound = "compute" if compute_us > least_us.sum() / 2 else "memory"
    return least_us.sum() / with_work.us.sum(), bound


def _label(work):
    """Return an operator's name with its first tensors' shapes, as "aten::mm 64x768 768x3072"."""
    shapes = [shape for shape, _ in work.operands if shape]
    first = FACTORS.get(work.name.split("::")[-1], 0)
    shown = ("x".join(map(str, shape)) for shape in shapes[first : first + 2])
    return " ".join([work.name, *shown])


def _least_us(work, needs, ceilings):
    """Return the microseconds of an operator's arithmetic and of its memory at the ceilings, NaN
    where shapes or ceilings are unknown.
    Each tensor is read once, and the result, taken to be as large as the largest of them, written
    once. needs: with "tf32" float32 products are TF32.
    """
    unknown = (nan, nan)
    operands = work.operands
    if not operands or not ceilings:
        return unknown
    name = work.name.split("::")[-1]
    sizes = [prod(shape) * BYTES[dtype] for shape, dtype in operands]
    flop = 0
    if name in FACTORS:
        first = FACTORS[name]
        (left_shape, dtype), (right_shape, _) = operands[first : first + 2]
        result_size = prod(left_shape[:-1]) * right_shape[-1]
        flop = 2 * result_size * left_shape[-1]
        moved = sum(sizes) + result_size * BYTES[dtype]
    elif "scaled_dot_product" in name:
        backward = "backward" in name
        (*heads, T, head_dim), dtype = operands[1 if backward else 0]
        # causal: the scores of half of all pairs
        flop = (4 if backward else 2) * prod(heads) * T * (T + 1) * head_dim
        moved = (8 if backward else 4) * prod(heads) * T * head_dim * BYTES[dtype]
    elif work.kind in ("other", "matmul") or re.search(SCATTERED, name):
        return unknown
    else:
        in_place = name.endswith("_") or name.startswith("triton_")
        moved = sum(sizes) + (0 if in_place or re.search(REDUCED, name) else max(sizes))
    memory_us = moved / ceilings["bandwidth_gb_s"] / 1e3
    if not flop:
        return 0.0, memory_us
    precision = PRECISIONS.get(dtype)
    if precision == "float32" and "tf32" in needs:
        precision = "tf32"
    tflops = ceilings["matmul_tflops"].get(precision)
    return (flop / tflops / 1e6, memory_us) if tflops else unknown
