"""What holds a profiled run back, and which technique addresses it."""

from Utils.base import ladder
from Utils.base.errors import Unsupported
from Utils.device import checks
from Utils.device.checks import CHECKS
from Utils.device.cpu import CPU

LINES = 5  # at most
# From which share of the step on a thing is worth a line.
DATA, STRETCH, LAUNCHES, COPIES, OPTIMIZER = 0.1, 0.1, 0.2, 0.05, 0.15
SOFTMAX, ELEMENTWISE, PRODUCTS, COMMUNICATION = 0.1, 0.15, 0.25, 0.1
READS = 0.1  # the weight of a needless one where nothing waits for it, as on a CPU
REACHED = 0.7  # of the ceiling of products; beyond that only another type makes them faster


def advise(summary, technique, needs, device):
    """At most five lines, what costs most first, each from figures of `kinds.summarize`.

    technique: of `ladder`, whose run it was; what it has already is not advised. needs: what it
        declared. device: of `hardware`; what it cannot do, or what has no effect there, is not
        advised either.
    """
    findings = sorted(_findings(summary, needs, device), key=lambda finding: -finding[0])
    lines = []
    for _, figure, names in findings[:LINES]:
        useful = [name for name in names if _helps(name, technique, needs, device)]
        if useful:
            lines.append(f"{figure}: {' or '.join(useful)}")
        elif names:
            lines.append(f"{figure}; no technique here is left for it")
        else:
            lines.append(figure)
    return lines or ["nothing stands out"]


def _findings(summary, needs, device):
    """(how much it weighs, what was found, names of the techniques that address it)."""
    kinds, gap = summary["kinds"], summary["gap"]
    step_ms = summary["mean_step_ms"]
    on_gpu = not isinstance(device, CPU)

    def share(kind, *parts):
        if not parts:
            return kinds[kind]["share"]
        return sum(kinds[kind]["parts"].get(part, 0.0) for part in parts) / step_ms

    if summary["memory"]["grows"]:
        yield (
            2.0,
            f"memory grows by {summary['memory']['growth_mib']:,.2f} MiB a step: "
            "something that the loop keeps holds on to tensors",
            (),
        )
    if (waiting := share("idle", "data")) > DATA:
        yield (
            waiting,
            f"{waiting:.0%} of the step waits for data",
            ("prefetching_loader", "data_on_device"),
        )
    stretch = gap["ms"] / step_ms
    if stretch > STRETCH:
        yield (
            stretch,
            f"{gap['ms']:,.1f} ms of the step ({stretch:.0%}) pass in one stretch outside of "
            f"torch, between {gap['after']} and {gap['before']}; CPU=1 shows in which function",
            (),
        )
    host = share("idle", "dispatch", "python") - (0 if on_gpu else min(stretch, 1))
    if host > (DATA if on_gpu else LAUNCHES):
        waits = "the device waits for the host" if on_gpu else "Python and dispatch compute nothing"
        names = ("asynchronous_logging", "cuda_graphs") if on_gpu else ("torch_compile",)
        yield host, f"{host:.0%} of the step {waits}", (*names, "larger_batch")
    if summary["reads"] > 1:
        yield (
            max(host, READS) if on_gpu else READS,
            f"the host reads {summary['reads']:.3g} values of tensors in a step, as by .item(), "
            "where run.log needs one; on a GPU each read waits for the device",
            ("asynchronous_logging",) if on_gpu else (),
        )
    if (transfers := share("copies", "transfers")) > COPIES:
        yield (
            transfers,
            f"{transfers:.0%} of the step copies between host and device",
            ("data_on_device", "prefetching_loader"),
        )
    if (weight := share("copies", "embedding")) > SOFTMAX:
        yield weight, f"{weight:.0%} of the step moves rows of the embedding and its gradient", ()
    if (copies := share("copies", "on the device")) > COPIES:
        moving = (one for one in summary["operators"] if one["kind"] == "copies")
        most = next((one for one in moving if "embedding" not in one["name"]), None)
        which = f", most of it {most['name']} ({most['ms']:,.1f} ms)" if most else ""
        yield copies, f"{copies:.0%} of the step copies tensors{which}", ("torch_compile",)
    if share("optimizer") > OPTIMIZER:
        weight = share("optimizer")
        yield weight, f"{weight:.0%} of the step is the optimizer", ("fused_optimizer",)
    if (weight := share("normalization", "softmax")) > SOFTMAX:
        yield weight, f"{weight:.0%} of the step is attention's softmax", ("flash_attention",)
    if (weight := share("normalization", "loss")) > SOFTMAX:
        names = ("torch_compile", "fused_cross_entropy")
        yield weight, f"{weight:.0%} of the step is the loss", names
    if (weight := share("normalization", "norms", "sums")) > SOFTMAX:
        yield weight, f"{weight:.0%} of the step is LayerNorm and sums", ("torch_compile",)
    if (weight := share("elementwise")) > ELEMENTWISE:
        yield weight, f"{weight:.0%} of the step is element-wise", ("torch_compile",)
    if (weight := share("communication")) > COMMUNICATION:
        yield weight, f"{weight:.0%} of the step is communication", ()
    if (weight := share("matmul")) > PRODUCTS:
        reached = kinds["matmul"]["ceiling_share"]
        at = f", at {reached:.0%} of their ceiling" if reached is not None else ""
        names = ("tensorFloat32", "brainFloat16", "float16_grad_scaler")
        halves = {"bfloat16", "float16"}.intersection(needs)
        if halves:
            names = () if (reached or 0) > REACHED else ("max_autotune", "larger_batch")
        yield weight, f"{weight:.0%} of the step is matrix products{at}", names


def _helps(name, technique, needs, device):
    """Whether a technique is there, is not in that script already, and does what it is for on that
    device."""
    known = ladder.techniques()
    if name not in known:
        return False
    candidate = known[name]
    added = [
        line[1:].strip()
        for line in ladder.diff(candidate, known[candidate.parent], context=0)[2:]
        if line.startswith("+") and line[1:].strip()
    ]
    ancestors = ladder.line(technique.parent) if technique.parent else ()
    if name in (technique.name, *ancestors) or all(line in technique.code for line in added):
        return False
    own = set(candidate.needs) - set(known[candidate.parent].needs)
    if own and own <= set(needs):
        return False
    try:
        notes = {need: checks.check(need, device) for need in candidate.needs if need in CHECKS}
    except Unsupported:
        return False
    return not any(notes.get(need) for need in own)
