"""Advice on a profiled run: the largest costs of its step, and techniques that address them."""

from Utils.base.errors import Unsupported
from Utils.device import capabilities
from Utils.device.capabilities import CHECKS
from Utils.device.cpu import CPU
from Utils.scripts import ladder

LINES = 5  # at most
TRANSFERS = ("data_on_device", "prefetching_loader")
# Kind and parts of it; the least share of the step that gets a line; the line's text; techniques.
SHARES = (
    ("idle", ("data",), 0.1, "waits for data", ("prefetching_loader", "data_on_device")),
    ("copies", ("transfers",), 0.05, "copies between host and device", TRANSFERS),
    ("copies", ("embedding",), 0.1, "moves rows of the embedding and its gradient", ()),
    ("optimizer", (), 0.15, "is the optimizer", ("fused_optimizer",)),
    ("normalization", ("softmax",), 0.1, "is attention's softmax", ("flash_attention",)),
    ("normalization", ("loss",), 0.1, "is the loss", ("torch_compile", "fused_cross_entropy")),
    ("normalization", ("norms", "sums"), 0.1, "is LayerNorm and sums", ("torch_compile",)),
    ("elementwise", (), 0.15, "is element-wise", ("torch_compile",)),
    ("communication", (), 0.1, "is communication", ()),
)
COPIES, STRETCH, PRODUCTS = 0.05, 0.1, 0.25  # least shares of further findings
HOST_OF_GPU, HOST = 0.1, 0.2
READS = 0.1  # the weight of a needless read on a CPU, where nothing waits for it
REACHED = 0.7  # of the ceiling of products; beyond it only another type makes them faster


def advise(summary, technique, needs, device):
    """Return at most five lines from the figures of `breakdown.summarize`, the largest cost first.

    technique: of `ladder`, the one that ran. needs: those that it declared. device: of
        Utils.device. Techniques that it already has, or without effect there, are not advised.
    """
    findings = sorted(_findings(summary, needs, device), key=lambda finding: -finding[0])
    lines = []
    for _, figure, names in findings[:LINES]:
        useful = [name for name in names if _helps(name, technique, needs, device)]
        if useful:
            lines.append(f"{figure}: {' or '.join(useful)}")
        elif names:
            lines.append(f"{figure}; no technique is left for it")
        else:
            lines.append(figure)
    return lines or ["no dominant cost"]


def _findings(summary, needs, device):
    """Yield (weight, finding, names of the techniques that address it)."""
    kinds, gap, memory = summary["kinds"], summary["gap"], summary["memory"]
    step_ms = summary["mean_step_ms"]
    on_gpu = not isinstance(device, CPU)

    def share(kind, *parts):
        if not parts:
            return kinds[kind]["share"]
        return sum(kinds[kind]["parts"].get(part, 0.0) for part in parts) / step_ms

    for kind, parts, least, text, names in SHARES:
        if (weight := share(kind, *parts)) > least:
            yield weight, f"{weight:.0%} of the step {text}", names
    if memory["grows"]:
        grows = f"memory grows by {memory['growth_mib']:,.2f} MiB a step"
        yield 2.0, f"{grows}: the loop keeps references to tensors", ()
    stretch = gap["ms"] / step_ms
    if stretch > STRETCH:
        text = f"{gap['ms']:,.1f} ms of the step ({stretch:.0%}) are one gap outside torch"
        between = f"between {gap['after']} and {gap['before']}"
        yield stretch, f"{text}, {between}; CPU=1 shows the function", ()
    host = share("idle", "dispatch", "python") - (0 if on_gpu else min(stretch, 1))
    if on_gpu and host > HOST_OF_GPU:
        names = ("asynchronous_logging", "cuda_graphs", "larger_batch")
        yield host, f"{host:.0%} of the step the device waits for the host", names
    elif not on_gpu and host > HOST:
        text = f"{host:.0%} of the step Python and dispatch compute nothing"
        yield host, text, ("torch_compile", "larger_batch")
    if summary["reads"] > 1:
        text = f"the host reads {summary['reads']:.3g} tensor values per step, as with .item()"
        text += ", and run.log needs only one; on a GPU each read waits for the device"
        yield max(host * on_gpu, READS), text, ("asynchronous_logging",) if on_gpu else ()
    if (copies := share("copies", "on the device")) > COPIES:
        moving = (op for op in summary["operators"] if op["kind"] == "copies")
        longest = next((op for op in moving if "embedding" not in op["name"]), None)
        mostly = f", mostly {longest['name']} ({longest['ms']:,.1f} ms)" if longest else ""
        yield copies, f"{copies:.0%} of the step copies tensors{mostly}", ("torch_compile",)
    if (weight := share("matmul")) > PRODUCTS:
        reached = kinds["matmul"]["ceiling_share"]
        at = f", at {reached:.0%} of their ceiling" if reached is not None else ""
        names = ("tensorFloat32", "brainFloat16", "float16_grad_scaler")
        if {"bfloat16", "float16"}.intersection(needs):
            names = () if (reached or 0) > REACHED else ("max_autotune", "larger_batch")
        yield weight, f"{weight:.0%} of the step is matrix products{at}", names


def _helps(name, technique, needs, device):
    """Return whether a technique is known, is not in that script already, and has its effect on
    that device."""
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
    added_needs = set(candidate.needs) - set(known[candidate.parent].needs)
    if added_needs and added_needs <= set(needs):
        return False
    try:
        notes = {
            need: capabilities.check(need, device) for need in candidate.needs if need in CHECKS
        }
    except Unsupported:
        return False
    return not any(notes.get(need) for need in added_needs)
