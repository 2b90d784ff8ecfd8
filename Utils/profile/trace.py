"""A profiler's trace, sorted out: which stretch of time went to which operator or kernel.

It reads what torch.profiler exports (Chrome's format, times in microseconds), so what is summed
here is what Perfetto shows. On a CPU an operator's own time is its kind's; on a GPU that of the
kernels, copies and fills that ran there, each moment counted once.
"""

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from Utils.device.kernel_kinds import KERNELS, PARTS, WHOLE, kernel_kind, operator_kind

WAIT = "wait for the batch"  # the range around it in the trace
BYTES = dict.fromkeys(("double", "long int", "long"), 8)
BYTES |= dict.fromkeys(("float", "int"), 4) | dict.fromkeys(("c10::BFloat16", "c10::Half"), 2)
BYTES |= dict.fromkeys(("bool", "unsigned char", "signed char"), 1)
BYTES |= dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1)
FACTORS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1}  # where the first stands
SCATTERED = r"index|gather|scatter|embedding|select_backward|slice_backward|cat|stack|sort"


@dataclass(eq=False)
class Task:
    """One call of an operator, a kernel or the optimizer: what pieces of time are spent on.

    part: of the kind, as in "data" of idle. work: (FLOP, bytes, type of its factors) where the
    shapes tell.
    """

    kind: str
    part: str
    name: str
    work: tuple | None = None


class Piece(NamedTuple):
    """A stretch of time, in microseconds, and the task that it went to."""

    start: float
    end: float
    task: Task


def nested(events):
    """Yield the stretches of one thread's time between which the innermost of its events changes:
    (start, end, events around it, outermost first). Those without events are left out."""
    stack, at = [], 0.0
    for event in [*sorted(events, key=lambda e: (e["ts"], -e["dur"])), {"ts": math.inf}]:
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            end = max(at, stack[-1]["ts"] + stack[-1]["dur"])
            yield at, end, tuple(stack)
            at = end
            stack.pop()
        if stack:
            yield at, event["ts"], tuple(stack)
        at = event["ts"]
        stack.append(event)


class Trace:
    """The events of an exported trace, sorted out.

    segments: what `nested` yields of each thread of the host. host: those of the threads that
    count, on a CPU the loop's alone.
    boundaries: where the steps begin, in microseconds: on a GPU with the first thing that a step
    launched, as the host may be ahead; one more than there are steps to sum up.
    """

    def __init__(self, events):
        timed = [event for event in events if event.get("ph") == "X" and "dur" in event]
        steps = [e for e in timed if e["name"].startswith("ProfilerStep#") and _on_host(e)]
        steps.sort(key=lambda event: event["ts"])
        if len(steps) < 2:
            raise ValueError("the trace holds no two steps")
        self.starts = [event["ts"] for event in steps]
        self.collectives = [e for e in timed if re.match(r"(gloo|mpi):", e["name"])]
        self.memory = [e for e in events if e.get("name") == "[memory]"]
        threads = defaultdict(list)
        for event in filter(_on_host, timed):
            threads[event["pid"], event["tid"]].append(event)
        segments = {thread: list(nested(own)) for thread, own in threads.items()}
        self.segments = list(chain.from_iterable(segments.values()))
        self.device = [e for e in timed if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        self.host = self.segments if self.device else segments[steps[0]["pid"], steps[0]["tid"]]
        self.tasks, self.inner_us = {}, Counter()  # of a task: what others of its kind within took
        launches = self._launches()
        self.boundaries = self._boundaries(launches)
        self.pieces = self._on_device(launches) if self.device else []
        self.pieces += self._on_host()

    def _launches(self):
        """Return the host's events around the launch of each task of the device, by number."""
        return {
            stack[-1]["args"]["correlation"]: (stack[-1]["ts"], stack)
            for _, _, stack in self.segments
            if stack[-1].get("cat") in ("cuda_runtime", "cuda_driver")
            and "correlation" in stack[-1].get("args", {})
        }

    def _boundaries(self, launches):
        first = {}
        for event in self.device:
            launched = launches.get(event["args"].get("correlation"))
            if launched and (step := bisect_right(self.starts, launched[0])):
                first[step - 1] = min(event["ts"], first.get(step - 1, math.inf))
        return [first.get(step, start) for step, start in enumerate(self.starts)]

    def _task(self, kind, event, part=""):
        """Return the task of that event; there is one for each."""
        if id(event) not in self.tasks:
            name = event["name"]
            if kind == "normalization":
                part = next(part for part, words in PARTS.items() if re.search(words, name, re.I))
            elif kind == "copies":
                part = part or ("embedding" if "embedding" in name else "on the device")
            self.tasks[id(event)] = Task(kind, part, label(event), work_of(event))
        return self.tasks[id(event)]

    def _operator(self, stack, us=0.0):
        """Return the task of the operator that a stretch belongs to, or None: the innermost that
        computes something, but attention and the embedding as a whole. us: how long the stretch
        is."""
        known = [(event, operator_kind(event["name"])) for event in stack if is_operator(event)]
        known = [(event, kind) for event, kind in known if kind]
        if not known:
            return None
        whole = (i for i, (event, _) in enumerate(known) if re.search(WHOLE, event["name"]))
        at = next(whole, len(known) - 1)
        event, kind = known[at]
        for outer, its_kind in known[:at]:
            if its_kind == kind:
                self.inner_us[self._task(kind, outer)] += us
        return self._task(kind, event)

    def _on_device(self, launches):
        """Return the pieces of a GPU's time."""
        pieces = []
        for event in self.device:
            _, stack = launches.get(event["args"].get("correlation"), (0, ()))
            name = event["name"]
            optimizer = first(stack, "Optimizer.")
            if re.search(KERNELS["communication"], name, re.I):
                task = self._task("communication", event)
            elif optimizer:
                task = self._task("optimizer", optimizer)
            elif event["cat"] != "kernel":
                part = "transfers" if re.search(r"HtoD|DtoH|Host", name) else ""
                task = self._task("copies", event, part)
            else:
                task = self._operator(stack) or self._task(kernel_kind(name), event)
            pieces.append(Piece(event["ts"], event["ts"] + event["dur"], task))
        return pieces

    def _on_host(self):
        """Return the pieces of the host's time; on a GPU all as idle, since they count only where
        the device has nothing to do."""
        pieces = []
        for start, end, stack in self.host:
            wait, optimizer = first(stack, WAIT), first(stack, "Optimizer.")
            if wait:
                task = self._task("idle", wait, "data")
            elif not self.device and optimizer:
                task = self._task("optimizer", optimizer)
            elif self.device or not (task := self._operator(stack, end - start)):
                if not any(map(is_operator, stack)):
                    continue  # Python, within a range
                task = DISPATCH
            pieces.append(Piece(start, end, task))
        return pieces


DISPATCH = Task("idle", "dispatch", "")
PYTHON = Task("idle", "python", "")


def _on_host(event):
    return event.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")


def is_operator(event):
    return event.get("cat") != "user_annotation"


def first(stack, prefix):
    return next((event for event in stack if event["name"].startswith(prefix)), None)


def label(event):
    """Return an operator's name with its first tensors' shapes, as "aten::mm 64x768 768x3072"."""
    shapes = [shape for shape, _ in _tensors(event) or () if shape]
    first = FACTORS.get(event["name"].split("::")[-1], 0)
    shown = ("x".join(map(str, shape)) for shape in shapes[first : first + 2])
    return " ".join([event["name"], *shown])


def _tensors(event):
    """Return (shape, type) of an operator's tensors, or None where it has lists of them or none."""
    arguments = event.get("args", {})
    dims, types = arguments.get("Input Dims"), arguments.get("Input type", ())
    if not dims or "TensorList" in types:
        return None
    pairs = zip(dims, types, strict=False)
    return [(shape, kind) for shape, kind in pairs if kind in BYTES] or None


def work_of(event):
    """Return (FLOP, bytes, type of the factors) of an operator, or None for unknown shapes.

    Bytes are the least that has to move: each tensor read once, and the result, taken to be as
    large as the largest of them, written once.
    """
    name, tensors = event["name"].split("::")[-1], _tensors(event)
    if not tensors:
        return None
    if name in FACTORS:
        ((*rows, inner), kind), ((*_, columns), _) = tensors[FACTORS[name] :][:2]
        result = math.prod(rows) * columns
        size = sum(math.prod(shape) * BYTES[kind] for shape, kind in tensors)
        return 2 * result * inner, size + result * BYTES[kind], kind
    if "scaled_dot_product" in name:
        backward = "backward" in name
        (*heads, T, head_dim), kind = tensors[backward]
        products, size = (4, 8) if backward else (2, 4)
        # causal: the scores of half of all pairs
        flop = products * math.prod(heads) * T * (T + 1) * head_dim
        return flop, size * math.prod(heads) * T * head_dim * BYTES[kind], kind
    if operator_kind(event["name"]) in (None, "other", "matmul") or re.search(SCATTERED, name):
        return None
    sizes = [math.prod(shape) * BYTES[kind] for shape, kind in tensors]
    in_place = name.endswith("_") or name.startswith("triton_")
    smaller = re.search(r"^(sum|mean|nll_loss\w*|any|all|amax|norm)$", name)
    return 0, sum(sizes) + (0 if in_place or smaller else max(sizes)), tensors[0][1]
