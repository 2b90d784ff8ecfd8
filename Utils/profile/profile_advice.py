"""Advice on a profiled run: the largest costs of its step, and techniques that address them."""

from dataclasses import dataclass

from Utils.base.errors import Unsupported
from Utils.base.units import MIB
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
GROWTH_MIB = 4096 / MIB  # a step; scalars that a loop keeps are less


@dataclass(frozen=True)
class Finding:
    """A cost of the step, in words, with its weight and the techniques that address it."""

    weight: float
    text: str
    techniques: tuple = ()


def advise(breakdown, technique, needs, device):
    """Return at most five lines from a Breakdown, the largest cost first.

    technique: of `ladder`, the one that ran. needs: those that it declared. device: of
        Utils.device. Techniques that it already has, or without effect there, are not advised.
    """
    findings = [*_shares(breakdown), *_further(breakdown, needs, not isinstance(device, CPU))]
    lines = []
    for finding in sorted(findings, key=lambda finding: -finding.weight)[:LINES]:
        useful = [name for name in finding.techniques if _helps(name, technique, needs, device)]
        if useful:
            lines.append(f"{finding.text}: {' or '.join(useful)}")
        elif finding.techniques:
            lines.append(f"{finding.text}; no technique is left for it")
        else:
            lines.append(finding.text)
    return lines or ["no dominant cost"]


def grows(breakdown):
    return breakdown.growth_mib is not None and breakdown.growth_mib > GROWTH_MIB


def _share(breakdown, kind, *parts):
    """Return the share of the step of a kind's parts, or of the kind."""
    if not parts:
        return breakdown.kinds[kind].share
    ms = sum(breakdown.kinds[kind].parts.get(part, 0.0) for part in parts)
    return ms / breakdown.mean_step_ms


def _shares(breakdown):
    for kind, parts, least, text, techniques in SHARES:
        weight = _share(breakdown, kind, *parts)
        if weight > least:
            yield Finding(weight, f"{weight:.0%} of the step {text}", techniques)


def _further(breakdown, needs, on_gpu):
    """Yield the Findings that are no plain share of the step."""
    if grows(breakdown):
        growth = f"memory grows by {breakdown.growth_mib:,.2f} MiB a step"
        yield Finding(2.0, f"{growth}: the loop keeps references to tensors")
    stretch = breakdown.gap_ms / breakdown.mean_step_ms
    if stretch > STRETCH:
        text = f"{breakdown.gap_ms:,.1f} ms of the step ({stretch:.0%}) are one gap outside torch"
        between = f"between {breakdown.gap_between}"
        yield Finding(stretch, f"{text}, {between}; CPU=1 shows the function")
    host = _share(breakdown, "idle", "dispatch", "python") - (0 if on_gpu else min(stretch, 1))
    if on_gpu and host > HOST_OF_GPU:
        text = f"{host:.0%} of the step the device waits for the host"
        yield Finding(host, text, ("asynchronous_logging", "cuda_graphs", "larger_batch"))
    elif not on_gpu and host > HOST:
        text = f"{host:.0%} of the step Python and dispatch compute nothing"
        yield Finding(host, text, ("torch_compile", "larger_batch"))
    if breakdown.reads > 1:
        text = f"the host reads {breakdown.reads:.3g} tensor values per step, as with .item()"
        text += ", and run.log needs only one; on a GPU each read waits for the device"
        weight = max(host, READS) if on_gpu else READS
        yield Finding(weight, text, ("asynchronous_logging",) if on_gpu else ())
    copies = _share(breakdown, "copies", "on the device")
    if copies > COPIES:
        moving = [op for op in breakdown.operators if op.kind == "copies"]
        longest = next((op for op in moving if "embedding" not in op.name), None)
        mostly = f", mostly {longest.name} ({longest.ms:,.1f} ms)" if longest else ""
        yield Finding(
            copies, f"{copies:.0%} of the step copies tensors{mostly}", ("torch_compile",)
        )
    products = breakdown.kinds["matmul"]
    if products.share > PRODUCTS:
        reached = products.ceiling_share
        at = "" if reached is None else f", at {reached:.0%} of their ceiling"
        techniques = ("tensorFloat32", "brainFloat16", "float16_grad_scaler")
        if {"bfloat16", "float16"}.intersection(needs):
            techniques = () if (reached or 0) > REACHED else ("max_autotune", "larger_batch")
        text = f"{products.share:.0%} of the step is matrix products{at}"
        yield Finding(products.share, text, techniques)


def _helps(name, technique, needs, device):
    """Return whether a technique is known, is not in that script already, and has its effect on
    that device."""
    techniques = ladder.techniques()
    if name not in techniques:
        return False
    candidate = techniques[name]
    parent = techniques[candidate.parent]
    changes = ladder.diff(candidate, parent, context=0)[2:]
    added = [line[1:].strip() for line in changes if line.startswith("+")]
    ancestors = ladder.line(technique.parent) if technique.parent else ()
    if name in (technique.name, *ancestors) or all(line in technique.code for line in added):
        return False
    added_needs = set(candidate.needs) - set(parent.needs)
    if added_needs and added_needs <= set(needs):
        return False
    checked = [need for need in candidate.needs if need in CHECKS]
    try:
        notes = {need: capabilities.check(need, device) for need in checked}
    except Unsupported:
        return False
    return not any(notes.get(need) for need in added_needs)
