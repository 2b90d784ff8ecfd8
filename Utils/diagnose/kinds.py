"""A profiler's trace -> what the time of a step was spent on, by kind of work.

It reads the trace that torch.profiler exports (Chrome's format, times in microseconds), so what is
summed here is what Perfetto shows. On a CPU an operator's own time is its kind's; on a GPU that of
the kernels, copies and fills that ran there, each moment counted once. What is left of a step is
`idle`: nothing was computed. docs/METHOD.md explains the grouping.
"""

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

KINDS = {  # in the order in which a moment of several is given to one of them
    "matmul": "matrix products",
    "attention": "attention",
    "normalization": "normalizations, softmax, sums",
    "elementwise": "element-wise",
    "optimizer": "optimizer",
    "other": "other",
    "copies": "copies and transfers",
    "communication": "communication",
    "idle": "idle",
}
WAIT = "wait for the batch"  # the range around it in the trace
SHORT_US = 10.0  # kernels and operators below it last about as long as it takes to launch them
STARVED = 0.1  # of the step; where a GPU waits less than that, launches hold nothing up
KNOWN = 0.8  # of a kind's time; where the work of less is known, no ceiling is held against it
GROWTH_BYTES = 4096  # a step; scalars that a loop keeps are less
# What an operator does, by its name; the first that matches. Those that match nothing but VIEWS
# only make tensors out of others' memory, or out of none: they compute nothing.
OPERATORS = {
    "communication": r"^(c10d|_c10d_functional|nccl|gloo|mpi):",
    "optimizer": r"::(_fused_(adam|adamw|sgd|adagrad)_?|_amp_\w+|optimizer_\w+)$",
    "attention": r"scaled_dot_product|_flash_attention|_efficient_attention|_cudnn_attention",
    "matmul": r"::(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|einsum|_(scaled|int)_mm"
    r"|linear_backward|matmul_backward|_?mkl_linear|_linear_pointwise)$",
    "normalization": r"softmax|_norm\b|_norm_backward|nll_loss|cross_?entropy"
    r"|::(sum|mean|var|std|var_mean|norm|linalg_vector_norm|logsumexp|amax|amin|max|min|argmax"
    r"|argmin|cumsum|prod|all|any|sum_to_size|_unsafe_masked_\w+)$",
    "copies": r"::(copy_|_to_copy|to|clone|contiguous|cat|stack|_?index\w*|take|gather|scatter\w*"
    r"|embedding\w*|select_backward|slice_backward|repeat|roll|flip|item|_local_scalar_dense"
    r"|_?pin_memory|constant_pad_nd|_foreach_copy_?|sort|\w+_copy)$",
    "elementwise": r"::(_foreach_\w+|(fill|zero|add|sub|rsub|mul|div|pow|sqrt|rsqrt|square|exp|log"
    r"|log1p|log2|neg|abs|sign|tanh|sigmoid|erf|gelu|relu|silu|where|masked_fill|lerp|addcmul"
    r"|addcdiv|clamp|clamp_min|clamp_max|maximum|minimum|eq|ne|lt|le|gt|ge|isfinite|isnan|isinf"
    r"|logical_\w+|bitwise_\w+|reciprocal|floor|ceil|round|trunc|remainder|fmod|sin|cos|triu|tril"
    r"|dropout|native_dropout|bernoulli|normal|uniform|random|randn|rand|randint|zeros|ones|full"
    r"|zeros_like|ones_like|full_like|new_zeros|new_full|arange|threshold|floor_divide|true_divide"
    r"|_masked_scale|_masked_softmax)(_|_backward)?)$",
}
WHOLE = rf"{OPERATORS['attention']}|::embedding"  # with all that they call
VIEWS = (
    r"::(view|view_as|reshape|_reshape_alias|_unsafe_view|t|transpose|permute|as_strided|expand"
    r"|expand_as|slice|select|narrow|split\w*|chunk|unbind|unsqueeze|squeeze|flatten|unflatten"
    r"|unfold|detach|alias|empty\w*|new_empty\w*|resize\w*|set|result_type|lift_fresh|numpy_T"
    r"|resolve_conj|resolve_neg|record_stream|is_\w+|size|stride|requires_grad|_\w*assert\w*"
    r"|_has_compatible_shallow_copy_type|output_nr|data|retain_grad|_version|isnan_view)_?$"
)
# Kernels that no operator of the above has launched, by their names.
KERNELS = {
    "communication": r"nccl|rccl",
    "attention": r"flash|fmha|sdpa|attention",
    "matmul": r"gemm|cutlass|nvjet|xmma|wgmma|cublas|splitk|cijk_|^triton_(tem|mm|bmm)_",
    "normalization": r"softmax|layer_?norm|rms_?norm|gammabeta|reduce|nll_loss|cross_?entropy",
    "optimizer": r"multi_tensor_apply|adam|optimizer",
    "copies": r"memcpy|memset|copy|catarray|index|gather|scatter|embedding|transpose|radixsort",
    "elementwise": r"elementwise|^triton_poi_|fill|masked|philox|distribution",
}
REDUCTIONS = (
    r"softmax|norm|nll_loss|cross_entropy|(?:^|_)(?:sum|mean|amax|amin|var|logsumexp)(?=_|$)"
)
MOVES = (  # what Inductor's kernels are called after when they only move
    r"(?:^|_)(_?to_copy|clone|copy|transpose|view|permute|expand|slice|unsqueeze|squeeze|cat|split"
    r"|select|t|embedding_dense_backward|embedding|index_put|index|slice_backward|select_backward"
    r"|unsafe_view|reshape|full|zeros|empty|detach|new_zeros|constant_pad_nd|scatter_add|scatter"
    r"|lift_fresh|arange)(?=_|$)"
)
PARTS = {  # of what reduces, by the operator's name
    "loss": r"log_softmax|nll_loss|cross_?entropy",
    "softmax": r"softmax",
    "norms": r"norm",
    "sums": r"",
}
BYTES = dict.fromkeys(("double", "long int", "long"), 8)
BYTES |= dict.fromkeys(("float", "int"), 4) | dict.fromkeys(("c10::BFloat16", "c10::Half"), 2)
BYTES |= dict.fromkeys(("bool", "unsigned char", "signed char"), 1)
BYTES |= dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1)
PRECISIONS = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}
FACTORS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "addmm": 1, "baddbmm": 1}  # where the first stands
SCATTERED = r"index|gather|scatter|embedding|select_backward|slice_backward|cat|stack|sort"


def operator_kind(name):
    """The kind of an operator or of Inductor's kernel, by its name; None where it computes nothing,
    or is no operator but a range, a region or a node of autograd; "other" where it is not known."""
    if re.match(r"graph_\d+_|cpp_|triton_", name):
        return _fused_kind(name)
    if not re.match(r"(?!autograd::|torch::autograd::)\w+::|(nccl|gloo|mpi):", name):
        return None
    for kind, pattern in OPERATORS.items():
        if re.search(pattern, name):
            return kind
    return None if re.search(VIEWS, name) else "other"


def _fused_kind(name):
    """Of Inductor's kernel, from the operators that it was fused from: its name says them, but for
    products from templates, which say at most their shape."""
    if "flex_attention" in name:
        return "attention"
    if re.match(r"graph_\d+_(?!cpp_fused)|cpp_(?!fused)|triton_(tem|mm|bmm)_", name):
        return "matmul"
    words = re.sub(r"^(graph_\d+_)?(cpp|triton_[a-z]+)_(fused_)?|_\d+$", "", name)
    if "embedding_dense_backward" in words:
        return "copies"  # it writes the whole table; whatever else is fused in is smaller
    if name.startswith(("triton_red_", "triton_per_")) or re.search(REDUCTIONS, words):
        return "normalization"
    return "elementwise" if re.sub(MOVES, "", words).strip("_") else "copies"


def kernel_kind(name):
    """The kind of a GPU's kernel by its own name, or "other"."""
    if name.startswith("triton_") and (kind := operator_kind(name)):
        return kind
    found = (kind for kind, pattern in KERNELS.items() if re.search(pattern, name, re.I))
    return next(found, "other")


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
    """The stretches of one thread's time between which the innermost of its events changes:
    (start, end, events around it, outermost first). Those without events are left out."""
    stack, at = [], 0.0
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            end = max(at, stack[-1]["ts"] + stack[-1]["dur"])
            yield at, end, tuple(stack)
            at = end
            stack.pop()
        if stack:
            yield at, event["ts"], tuple(stack)
        at = event["ts"]
        stack.append(event)
    while stack:
        end = max(at, stack[-1]["ts"] + stack[-1]["dur"])
        yield at, end, tuple(stack)
        at = end
        stack.pop()


class Trace:
    """The events of an exported trace, sorted out.

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
        self.thread = steps[0]["pid"], steps[0]["tid"]
        self.collectives = [e for e in timed if re.match(r"(gloo|mpi):", e["name"])]
        self.memory = [e for e in events if e.get("name") == "[memory]"]
        threads = defaultdict(list)
        for event in filter(_on_host, timed):
            threads[event["pid"], event["tid"]].append(event)
        self.segments = {thread: list(nested(own)) for thread, own in threads.items()}
        self.device = [e for e in timed if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        self.tasks, self.inner_us = {}, Counter()  # of a task: what others of its kind within took
        launches = self._launches()
        self.boundaries = self._boundaries(launches)
        self.pieces = self._on_device(launches) if self.device else []
        self.pieces += self._on_host()

    def _launches(self):
        """What the host was in when it launched each thing that ran on the device, by number."""
        return {
            stack[-1]["args"]["correlation"]: (stack[-1]["ts"], stack)
            for segments in self.segments.values()
            for _, _, stack in segments
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
        """The task of that event; there is one for each."""
        if id(event) not in self.tasks:
            name = event["name"]
            if kind == "normalization":
                part = next(part for part, words in PARTS.items() if re.search(words, name, re.I))
            elif kind == "copies":
                part = part or ("embedding" if "embedding" in name else "on the device")
            self.tasks[id(event)] = Task(kind, part, label(event), work_of(event))
        return self.tasks[id(event)]

    def _operator(self, stack, us=0.0):
        """The task of the operator that a stretch belongs to, or None: the innermost that computes
        something, but attention and the embedding as a whole. us: how long the stretch is."""
        known = [(event, operator_kind(event["name"])) for event in stack if _is_operator(event)]
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
        """The pieces of a GPU's time."""
        pieces = []
        for event in self.device:
            _, stack = launches.get(event["args"].get("correlation"), (0, ()))
            name = event["name"]
            optimizer = _first(stack, "Optimizer.")
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
        """The pieces of the host's time: of the loop's thread where it is the device; else all as
        idle, since they count only where the device has nothing to do."""
        pieces = []
        for thread, segments in self.segments.items():
            if not self.device and thread != self.thread:
                continue
            for start, end, stack in segments:
                wait, optimizer = _first(stack, WAIT), _first(stack, "Optimizer.")
                if wait:
                    task = self._task("idle", wait, "data")
                elif not self.device and optimizer:
                    task = self._task("optimizer", optimizer)
                elif self.device or not (task := self._operator(stack, end - start)):
                    if not any(map(_is_operator, stack)):
                        continue  # Python, within a range
                    task = DISPATCH
                pieces.append(Piece(start, end, task))
        return pieces


DISPATCH = Task("idle", "dispatch", "")
PYTHON = Task("idle", "python", "")


def _on_host(event):
    return event.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")


def _is_operator(event):
    return event.get("cat") != "user_annotation"


def _first(stack, prefix):
    return next((event for event in stack if event["name"].startswith(prefix)), None)


def label(event):
    """An operator's name with the shapes of its first tensors, as in "aten::mm 64x768 768x3072"."""
    shapes = [shape for shape, _ in _tensors(event) or () if shape]
    first = FACTORS.get(event["name"].split("::")[-1], 0)
    shown = ("x".join(map(str, shape)) for shape in shapes[first : first + 2])
    return " ".join([event["name"], *shown])


def _tensors(event):
    """(shape, type) of an operator's tensors, or None where it has lists of them or none."""
    arguments = event.get("args", {})
    dims, types = arguments.get("Input Dims"), arguments.get("Input type", ())
    if not dims or "TensorList" in types:
        return None
    pairs = zip(dims, types, strict=False)
    return [(shape, kind) for shape, kind in pairs if kind in BYTES] or None


def work_of(event):
    """(FLOP, bytes, type of the factors) of an operator as far as its shapes tell, else None.

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


def summarize(events, needs=(), ceilings=None, update_bytes=0):
    """What a trace says of a step: a dict.

    events: the list "traceEvents" of a trace with N + 1 ranges ProfilerStep#; N are summed up, from
        the beginning of the first to that of the last. needs: what the script declared, which says
        whether its float32 products are TF32's. ceilings: of `limits`, or None. update_bytes: the
        least that the optimizer has to read and write in a step.

    - steps; step_ms, a list of N; mean_step_ms
    - kinds: for each of KINDS ms a step, share (of 1), parts (ms by part: data, dispatch, python of
      idle; loss, softmax, norms, sums of what reduces; transfers, embedding, on the device of
      copies), and
      ceiling_share (the time of its work at the measured
      ceilings over the time that it took, or None), bound ("compute", "memory", "launch" or None)
    - operators: the ten longest, each name, kind, ms and calls a step
    - gap: the longest stretch of a step with no operator at all, median over the steps: ms, after,
      before (what ran on either side)
    - reads: tensors whose value the host asks for, a step, the optimizer's own aside
    - communication: ms a step that collectives are under way, and hidden, the share of it in which
      something is computed as well; or None
    - memory: see `memory`
    Raises ValueError where the trace holds no two steps.
    """
    trace = Trace(events)
    start, end = trace.boundaries[0], trace.boundaries[-1]
    steps = len(trace.boundaries) - 1
    spent = _spent(trace.pieces, start, end)
    spent[PYTHON] = max(0.0, end - start - sum(spent.values()))
    waits_us = sum(us for task, us in spent.items() if task.part in ("dispatch", "python"))
    starved = not trace.device or waits_us > STARVED * (end - start)
    inside = [piece for piece in trace.pieces if start <= piece.start < end]
    kinds = {}
    for kind in KINDS:
        times = {task: us for task, us in spent.items() if task.kind == kind}
        total_us = sum(times.values())
        parts = Counter()
        for task, us in times.items():
            parts[task.part] += us / steps / 1e3
        own = [piece for piece in inside if piece.task.kind == kind]
        least = _least_us(own, trace.inner_us, needs, ceilings)
        if kind == "optimizer" and ceilings:
            least = 0.0, steps * update_bytes / ceilings["bandwidth_gb_s"] / 1e3, total_us
        kinds[kind] = {
            "ms": total_us / steps / 1e3,
            "share": total_us / (end - start),
            "parts": {part: ms for part, ms in parts.items() if part},
            **_bound(kind, own, least, total_us, starved),
        }
    return {
        "steps": steps,
        "step_ms": [(b - a) / 1e3 for a, b in pairwise(trace.boundaries)],
        "mean_step_ms": (end - start) / steps / 1e3,
        "kinds": kinds,
        "operators": _operators(spent, inside, steps),
        "gap": _gap(trace),
        "reads": _reads(trace),
        "communication": _communication(trace, start, end, steps),
        "memory": memory(trace),
    }


def _communication(trace, start, end, steps):
    """How long collectives are under way, ms a step, and the share of it in which something is
    computed as well, on whichever stream or thread; None where there are none."""
    if trace.device:
        own = [e for e in trace.device if re.search(KERNELS["communication"], e["name"], re.I)]
        computing = [p for p in trace.pieces if p.task.kind not in ("communication", "idle")]
    else:
        own, computing = trace.collectives, [p for p in trace.pieces if p.task.kind != "idle"]
        computing = [p for p in computing if p.task.kind != "communication"]
    points = []
    for which, spans in (
        (0, [(event["ts"], event["ts"] + event["dur"]) for event in own]),
        (1, [(piece.start, piece.end) for piece in computing]),
    ):
        for a, b in spans:
            a, b = max(start, a), min(end, b)
            points += [(a, 1, which), (b, -1, which)] if a < b else []
    running, at, under_way, hidden = [0, 0], start, 0.0, 0.0
    for time, change, which in sorted(points):
        under_way += (time - at) * (running[0] > 0)
        hidden += (time - at) * (running[0] > 0 and running[1] > 0)
        running[which] += change
        at = time
    if not under_way:
        return None
    return {"ms": under_way / steps / 1e3, "hidden": hidden / under_way}


def _spent(pieces, start, end):
    """Microseconds between start and end by task, each moment given to one: the first in the order
    of KINDS, and of idle parts waiting for data."""
    order = {kind: rank for rank, kind in enumerate(KINDS)}
    points = []
    for number, piece in enumerate(pieces):
        a, b = max(start, piece.start), min(end, piece.end)
        if a < b:
            rank = order[piece.task.kind], piece.task.part != "data", number
            points += [(a, 1, rank), (b, 0, rank)]
    points.sort()
    spent, running, at = Counter(), set(), start
    for time, begins, rank in points:
        if running and time > at:
            spent[pieces[min(running)[-1]].task] += time - at
        at = time
        running.add(rank) if begins else running.discard(rank)
    return spent


def _least_us(pieces, inner_us, needs, ceilings):
    """What the tasks of some pieces cannot go below, in microseconds: of those nearer to the limit
    of arithmetic, and of those nearer to memory's; then how long they took. Of tasks whose work is
    known, those aside that mostly call others of their kind."""
    took, bound = Counter(), Counter()
    for start, end, task in pieces:
        took[task] += end - start
    for task, us in took.items():
        if not (ceilings and task.work) or inner_us[task] > us:
            continue
        flop, size, kind = task.work
        precision = PRECISIONS.get(kind)
        if precision == "float32" and "tf32" in needs:
            precision = "tf32"
        rate = ceilings["matmul_tflops"].get(precision)
        if flop and not rate:
            continue
        memory_us = size / ceilings["bandwidth_gb_s"] / 1e3
        compute_us = flop / rate / 1e6 if flop else 0.0
        bound["compute" if compute_us > memory_us else "memory"] += max(compute_us, memory_us)
        bound["took"] += us
    return bound["compute"], bound["memory"], bound["took"]


def _bound(kind, pieces, least_us, total_us, starved):
    """ceiling_share and bound of a kind.

    least_us: of `_least_us`. total_us: what all of its tasks took. starved: whether launches hold
        the device up.
    """
    if kind == "idle" or not total_us:
        return dict.fromkeys(("ceiling_share", "bound"))
    compute_us, memory_us, took_us = least_us
    share = bound = None
    if took_us >= KNOWN * total_us:
        share = (compute_us + memory_us) / took_us
        bound = "compute" if compute_us > memory_us else "memory"
    elif kind in ("normalization", "elementwise", "optimizer", "copies"):
        bound = "memory"  # whatever their shapes: hardly any arithmetic for each byte
    lengths = [end - start for start, end, _ in pieces]
    if starved and sum(us for us in lengths if us < SHORT_US) > sum(lengths) / 2:
        bound = "launch"
    return {"ceiling_share": share, "bound": bound}


def _operators(spent, pieces, steps):
    """The ten that took longest."""
    calls, took, kinds = Counter(), Counter(), {}
    for task in {piece.task for piece in pieces}:
        calls[task.name] += 1
    for task, us in spent.items():
        if task.kind != "idle":
            took[task.name] += us
            kinds[task.name] = task.kind
    return [
        {"name": name, "kind": kinds[name], "ms": us / steps / 1e3, "calls": calls[name] / steps}
        for name, us in took.most_common(10)
    ]


def _gap(trace):
    """The longest stretch of a step in which the host is in no operator, no optimizer and no wait:
    in Python, then, or asleep."""
    spans = []
    for thread, segments in trace.segments.items():
        if not trace.device and thread != trace.thread:
            continue
        for start, end, stack in segments:
            if any(map(_is_operator, stack)) or _first(stack, WAIT) or _first(stack, "Optimizer."):
                spans.append((start, end, stack[-1]["name"]))
    spans.sort()
    gaps = []
    for begin, finish in pairwise(trace.starts):
        longest, at, after = (0.0, "", ""), begin, "the beginning of the step"
        for start, end, name in spans:
            if end <= begin or start >= finish:
                continue
            longest = max(longest, (start - at, after, name))
            if end > at:
                at, after = end, name
        gaps.append(max(longest, (finish - at, after, "the end of the step")))
    middle = sorted(gaps)[len(gaps) // 2]
    return {"ms": middle[0] / 1e3, "after": middle[1], "before": middle[2]}


def _reads(trace):
    """How many tensors' values the host asks for in a step, such as by .item()."""
    asked = {
        id(event)
        for segments in trace.segments.values()
        for start, _, stack in segments
        for event in stack
        if event["name"] == "aten::_local_scalar_dense"
        and trace.starts[0] <= start < trace.starts[-1]
        and not _first(stack, "Optimizer.")
    }
    return len(asked) / (len(trace.starts) - 1)


def memory(trace):
    """What the device's allocator has handed out at the boundaries of the steps: a dict of

    boundaries_mib, above the first; growth_mib, the least by which a step added to it; grows,
    whether each step did, by more than the scalars that a loop may keep. All None where the trace
    has no allocations.
    """
    on_gpu = bool(trace.device)
    changes = sorted(
        (event["ts"], event["args"]["Bytes"])
        for event in trace.memory
        if (event["args"]["Device Type"] != 0) == on_gpu
    )
    if not changes:
        return dict.fromkeys(("boundaries_mib", "growth_mib", "grows"))
    held, total, at = [], 0, 0
    for start in trace.starts:
        while at < len(changes) and changes[at][0] < start:
            total += changes[at][1]
            at += 1
        held.append(total)
    grown = [b - a for a, b in pairwise(held)]
    return {
        "boundaries_mib": [(size - held[0]) / 2**20 for size in held],
        "growth_mib": min(grown) / 2**20,
        "grows": min(grown) > GROWTH_BYTES,
    }
