"""Advice on a profiled run: the largest costs of its step, and techniques that address them."""

from dataclasses import dataclass

from Utils.device import capabilities
from Utils.device.capabilities import CHECKS
from Utils.device.cpu import CPU
from Utils.scripts import ladder

LINES = 5  # at most
SIXTEEN_BITS = {"bfloat16", "float16"}


@dataclass(frozen=True)
class Cost:
    """A kind of work, or parts of it, that gets a line from a share of the step on.

    techniques: those that address it.
    """

    kind: str
    parts: tuple
    least: float
    words: str
    techniques: tuple


LOADERS = ("prefetching_loader", "data_on_device")
COMPILE = ("torch_compile",)
COSTS = (
    Cost("idle", ("data",), 0.1, "waits for data", LOADERS),
    Cost("copies", ("transfers",), 0.05, "copies between host and device", LOADERS),
    Cost("copies", ("on the device",), 0.05, "copies tensors", COMPILE),
    Cost("optimizer", (), 0.15, "is the optimizer", ("fused_optimizer",)),
    Cost("normalization", ("softmax",), 0.1, "is attention's softmax", ("flash_attention",)),
    Cost("normalization", ("loss",), 0.1, "is the loss", (*COMPILE, "fused_cross_entropy")),
    Cost("normalization", ("norms", "sums"), 0.1, "is LayerNorm and sums", COMPILE),
    Cost("elementwise", (), 0.15, "is element-wise", COMPILE),
)
HOST = ("dispatch", "python")
AHEAD = ("asynchronous_logging", "cuda_graphs", "larger_batch")
ON_A_GPU = Cost("idle", HOST, 0.1, "is waiting for the host", AHEAD)
ON_A_CPU = Cost("idle", HOST, 0.2, "is Python and dispatch", (*COMPILE, "larger_batch"))
PRODUCTS = ("tensorFloat32", "brainFloat16", "float16_grad_scaler")
PRODUCTS_IN_16_BITS = ("max_autotune", "larger_batch")


def advise(breakdown, technique, needs, device, full=False):
    """Return at most five lines from a Breakdown, the largest cost first.

    technique: of `ladder`, the one that ran. needs: those that it declared. device: of
        Utils.device. full: whether its memory is, so that no larger batch is advised. Techniques
        that it already has, or without effect there, are not advised either.
    """
    on_cpu = isinstance(device, CPU)
    products = PRODUCTS_IN_16_BITS if SIXTEEN_BITS.intersection(needs) else PRODUCTS
    costs = [*COSTS, ON_A_CPU if on_cpu else ON_A_GPU]
    costs.append(Cost("matmul", (), 0.25, "is matrix products", products))
    lines = []
    for cost in costs:
        share = _share(breakdown, cost)
        if cost is ON_A_CPU:  # a gap is no matter of dispatch
            share -= breakdown.gap_ms / breakdown.mean_step_ms
        useful = [name for name in cost.techniques if _helps(name, technique, needs, device)]
        useful = [name for name in useful if not (full and name == "larger_batch")]
        if share > cost.least and useful:
            lines.append((share, f"{share:.0%} of the step {cost.words}: {' or '.join(useful)}"))
    lines.sort(reverse=True)
    return [line for _, line in lines[:LINES]] or ["no technique is left for a dominant cost"]


def _share(breakdown, cost):
    kind = breakdown.kinds[cost.kind]
    if not cost.parts:
        return kind.share
    return sum(kind.parts.get(part, 0.0) for part in cost.parts) / breakdown.mean_step_ms


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
    if not all(capabilities.has(need, device) for need in checked):
        return False
    return not any(capabilities.check(need, device) for need in checked if need in added_needs)
