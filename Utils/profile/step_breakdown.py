"""A trace -> the time of a step by kind of work.

The rest of a step is `idle`: nothing was computed.
"""

import re
from bisect import bisect_left
from collections import Counter
from itertools import accumulate, pairwise

from Utils.base.units import MIB
from Utils.device.kernel_kinds import KERNELS, KINDS
from Utils.profile.trace import PYTHON, WAIT, Trace, first, is_operator

SHORT_US = 10.0  # kernels and operators below it last about as long as their launch
STARVED = 0.1  # of the step; a GPU that waits less is not bound by launches
KNOWN = 0.8  # of a kind's time; with less known work there is no share of the ceiling
GROWTH_BYTES = 4096  # per step; scalars that a loop keeps are less
PRECISIONS = {"c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32"}


def summarize(events, needs=(), ceilings=None, update_bytes=0):
    """Return the sums over the steps of a trace, a dict.

    events: the list "traceEvents" of a trace with N + 1 ranges ProfilerStep#; N are summed, from
        the start of the first to the start of the last. needs: those of the script; with "tf32" its
        float32 products are TF32. ceilings: of `limits`, or None. update_bytes: the least that the
        optimizer reads and writes in a step.

    - steps; step_ms, a list of N; mean_step_ms
    - kinds: for each of KINDS ms per step, share (of 1), parts (ms by part: data, dispatch, python
      of idle; loss, softmax, norms, sums of reductions; transfers, embedding, on the device of
      copies), ceiling_share (time at the measured ceilings / time taken, or None), bound
      ("compute", "memory", "launch" or None)
    - operators: the ten longest, each name, kind, ms and calls per step
    - gap: the longest stretch of a step without an operator, median over the steps: ms, after,
      before (the operators on either side)
    - reads: tensor values that the host reads per step, without the optimizer's
    - communication: ms per step of collectives, and hidden, the share of it that overlaps with
      computation; or None
    - memory: see `memory`
    Raises ValueError if the trace has fewer than two steps.
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
        pieces = [piece for piece in inside if piece.task.kind == kind]
        least = _least_us(pieces, trace.inner_us, needs, ceilings)
        if kind == "optimizer" and ceilings:
            least = 0.0, steps * update_bytes / ceilings["bandwidth_gb_s"] / 1e3, total_us
        kinds[kind] = {
            "ms": total_us / steps / 1e3,
            "share": total_us / (end - start),
            "parts": {part: ms for part, ms in parts.items() if part},
            **_bound(kind, pieces, least, total_us, starved),
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


def _sweep(spans, start, end):
    """Yield (microseconds, keys) of each stretch between start and end with a constant set of spans
    (begin, end, key). Stretches without spans are left out."""
    points = []
    for number, (a, b, _) in enumerate(spans):
        a, b = max(start, a), min(end, b)
        points += [(a, 1, number), (b, 0, number)] if a < b else []
    running, at = {}, start
    for time, begins, number in sorted(points):
        if running and time > at:
            yield time - at, running.values()
        at = time
        if begins:
            running[number] = spans[number][2]
        else:
            del running[number]


def _communication(trace, start, end, steps):
    """Return the ms per step of collectives, and the share that overlaps with computation on any
    stream or thread; None without collectives."""
    events = trace.collectives
    if trace.device:
        events = [e for e in trace.device if re.search(KERNELS["communication"], e["name"], re.I)]
    spans = [(event["ts"], event["ts"] + event["dur"], "collective") for event in events]
    for piece in trace.pieces:
        if piece.task.kind not in ("communication", "idle"):
            spans.append((piece.start, piece.end, "computing"))
    under_way = hidden = 0.0
    for us, kinds in _sweep(spans, start, end):
        under_way += us * ("collective" in kinds)
        hidden += us * ({"collective", "computing"} <= {*kinds})
    return {"ms": under_way / steps / 1e3, "hidden": hidden / under_way} if under_way else None


def _spent(pieces, start, end):
    """Return microseconds between start and end by task. Each moment counts for one task: the first
    in the order of KINDS; of idle parts, waiting for data."""
    order, spans = {kind: rank for rank, kind in enumerate(KINDS)}, []
    for number, (a, b, task) in enumerate(pieces):
        spans.append((a, b, (order[task.kind], task.part != "data", number)))
    spent = Counter()
    for us, ranks in _sweep(spans, start, end):
        spent[pieces[min(ranks)[-1]].task] += us
    return spent


def _least_us(pieces, inner_us, needs, ceilings):
    """Return microseconds of tasks with known work: the least time of compute-bound tasks, that of
    memory-bound ones, and the time that both took. Tasks that mostly call tasks of their kind are
    left out."""
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
    """Return ceiling_share and bound of a kind. least_us: of `_least_us`. total_us: the time of all
    its tasks. starved: true if the device waits for launches."""
    if kind == "idle" or not total_us:
        return dict.fromkeys(("ceiling_share", "bound"))
    compute_us, memory_us, took_us = least_us
    share = bound = None
    if took_us >= KNOWN * total_us:
        share = (compute_us + memory_us) / took_us
        bound = "compute" if compute_us > memory_us else "memory"
    elif kind in ("normalization", "elementwise", "optimizer", "copies"):
        bound = "memory"  # for any shapes: little arithmetic per byte
    lengths = [end - start for start, end, _ in pieces]
    if starved and sum(us for us in lengths if us < SHORT_US) > sum(lengths) / 2:
        bound = "launch"
    return {"ceiling_share": share, "bound": bound}


def _operators(spent, pieces, steps):
    """Return the ten longest operators."""
    calls = Counter(task.name for task in {piece.task for piece in pieces})
    took, kinds = Counter(), {}
    for task, us in spent.items():
        if task.kind != "idle":
            took[task.name] += us
            kinds[task.name] = task.kind
    return [
        {"name": name, "kind": kinds[name], "ms": us / steps / 1e3, "calls": calls[name] / steps}
        for name, us in took.most_common(10)
    ]


def _gap(trace):
    """Return the longest stretch of a step in which the host runs Python or sleeps: no operator, no
    optimizer, no wait for data."""
    spans = []
    for start, end, stack in trace.host:
        if any(map(is_operator, stack)) or first(stack, (WAIT, "Optimizer.")):
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
    """Return the number of tensor values that the host reads in a step, as with .item()."""
    reads = {
        id(event)
        for start, _, stack in trace.segments
        for event in stack
        if event["name"] == "aten::_local_scalar_dense"
        and trace.starts[0] <= start < trace.starts[-1]
        and not first(stack, "Optimizer.")
    }
    return len(reads) / (len(trace.starts) - 1)


def memory(trace):
    """Return the memory of the device's allocator, a dict.

    boundaries_mib, at each step's start, above the first; peak_mib, the most in the first step,
    above its start; growth_mib, the smallest growth of a step; grows, true if every step grew by
    more than a few scalars. All None if the trace has no allocations.
    """
    on_gpu = bool(trace.device)
    changes = sorted(
        (event["ts"], event["args"]["Bytes"])
        for event in trace.memory
        if (event["args"]["Device Type"] != 0) == on_gpu
    )
    if not changes:
        return dict.fromkeys(("boundaries_mib", "peak_mib", "growth_mib", "grows"))
    times, sizes = zip(*changes, strict=True)
    totals = [0, *accumulate(sizes)]
    at = [bisect_left(times, start) for start in trace.starts]
    held = [totals[index] for index in at]
    grown = [b - a for a, b in pairwise(held)]
    return {
        "boundaries_mib": [(size - held[0]) / MIB for size in held],
        "peak_mib": (max(totals[at[0] : at[1] + 1]) - held[0]) / MIB,
        "growth_mib": min(grown) / MIB,
        "grows": min(grown) > GROWTH_BYTES,
    }
