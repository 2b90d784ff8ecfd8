"""Fusion: the operations of a compiled graph that become one kernel.

The rules are Inductor's, simplified. A matrix product, attention or the like is a kernel of its
own. What is computed element by element, or reduced, joins the kernel that makes or reads the same
numbers in the same order, unless something between the two needs a kernel of its own.
"""

from collections import defaultdict
from dataclasses import replace
from operator import getitem

import torch

from Utils.forecast import traced_operation
from Utils.forecast.kernel_work import COMPILED, Operation

MOST_READS = 4  # of memory, beyond which what several kernels need is computed once and written
LONGEST_ROW = 4096  # numbers that one block keeps in registers; of a longer row each pass reads
ELEMENTWISE = {  # of Inductor's, beside those that torch tags as such
    *("cat", "clone", "constant_pad_nd", "convert_element_type", "copy", "embedding", "full"),
    *("full_like", "gather", "index", "iota", "scalar_tensor", "select_scatter", "slice_scatter"),
    *("new_zeros", "zeros", "zeros_like", "ones", "arange"),
}
REDUCTIONS = {"amax", "amin", "any", "argmax", "max", "mean", "min", "prod", "sum", "var_mean"}


def _operator(node):
    return node.target if isinstance(node.target, torch._ops.OpOverload) else None


def _name(node):
    operator = _operator(node)
    return operator._schema.name.split("::")[1] if operator else ""


def is_elementwise(node):
    operator, name = _operator(node), _name(node)
    if operator is None or operator._schema.is_mutable or is_view(node):
        return False
    if name == "scatter":  # into a constant Inductor compares indices instead
        return _operator(node.args[0]) is torch.ops.aten.full.default
    return torch.Tag.pointwise in operator.tags or name in ELEMENTWISE


def is_reduction(node):
    return _name(node) in REDUCTIONS


def is_view(node):
    if node.target is getitem:
        return True
    operator = _operator(node)
    if operator is None or operator._schema.is_mutable:
        return False
    return any(returned.alias_info is not None for returned in operator._schema.returns)


def _tensor(node):
    """Return the Tensor of what a node computes, or None where it is no tensor."""
    return next(iter(traced_operation.tensors(node.meta.get("val"))), None)


class Group:
    """Nodes of a graph that are one kernel."""

    def __init__(self, domain, columns):
        self.domain = domain  # numbers that its loops run over
        self.columns = columns  # whether it sums columns
        self.nodes = []
        self.bits = 0  # of its nodes
        self.leaves = {}  # Tensors that it reads, by node
        self.stage = {}  # of each node: the reductions before it
        self.row = 1  # numbers that it reduces to one

    def add(self, node, bit, leaves):
        reduces = is_reduction(node)
        self.nodes.append(node)
        self.bits |= bit
        self.leaves |= {leaf: _tensor(leaf) for leaf in leaves if _tensor(leaf)}
        self.stage[node] = max((self.stage.get(leaf, 0) for leaf in leaves), default=0) + reduces
        if reduces and not self.columns:
            self.row = max(self.row, self.domain // max(1, _tensor(node).numel))

    def operation(self, fused):
        """Return the Operation of the kernel. fused: nodes that take no memory."""
        reads = tuple(t for leaf, t in self.leaves.items() if leaf not in self.stage)
        written = (n for n in self.nodes if not self.stage.keys() >= _ends(n, "users", fused))
        writes = tuple(filter(None, map(_tensor, written)))
        passes = 1
        if self.row > LONGEST_ROW:
            tensors = filter(None, map(_tensor, self.nodes))
            last = any(tensor.numel == self.domain for tensor in tensors)
            passes = max(1, max(self.stage.values()) + last)
        name = "reduction" if self.columns or self.row > 1 else "pointwise"
        return Operation(name, reads, writes, host=COMPILED, passes=passes)


def kernels(nodes, fused):
    """Return the Operations of a graph's kernels, in order. fused: nodes that take no memory."""
    fused = set(fused)
    groups = []  # and nodes that are their own kernels
    maker = {}  # Group that computes a node
    readers = defaultdict(list)  # Groups that read a node
    ancestors = {}  # of each node, with itself: a bit for each
    for number, node in enumerate(nodes):
        bit = ancestors[node] = 1 << number
        for parent in node.all_input_nodes:
            ancestors[node] |= ancestors[parent]
        if _operator(node) is None or is_view(node):
            continue
        leaves = _ends(node, "all_input_nodes", fused)  # what it reads from memory
        if node in fused:
            if len(node.users) < 2 or len(leaves) <= MOST_READS:
                continue
            fused.remove(node)
        # Inductor makes the kernel of a scatter, into a constant or not.
        if not (is_elementwise(node) or is_reduction(node) or _name(node) == "scatter"):
            groups.append(node)
            continue
        domain = _domain(node)
        near = [group for leaf in leaves for group in readers[leaf]]
        near += [maker[leaf] for leaf in leaves if leaf in maker]
        for group in dict.fromkeys(near):
            if (group.domain, group.columns) != domain:
                continue
            outside = [leaf for leaf in leaves if leaf not in group.stage]
            if not any(ancestors[leaf] & group.bits for leaf in outside):
                break
        else:
            group = Group(*domain)
            groups.append(group)
        group.add(node, bit, leaves)
        maker[node] = group
        for leaf in leaves:
            readers[leaf].append(group)
    return [
        group.operation(fused) if isinstance(group, Group) else _alone(group) for group in groups
    ]


def _ends(node, direction, fused):
    """Return the nodes that a node reads ("all_input_nodes") or that read it ("users"), through
    fused ones and views: the keys of a dict."""
    ends = {}
    waiting = list(getattr(node, direction))
    seen = set()
    while waiting:
        end = waiting.pop()
        if end in seen:
            continue
        seen.add(end)
        if end in fused or is_view(end):
            waiting.extend(getattr(end, direction))
        else:
            ends[end] = None
    return ends.keys()


def _domain(node):
    """Return (numbers that its loops run over, whether it sums columns)."""
    if not is_reduction(node):
        return _tensor(node).numel, False
    source = _tensor(node.all_input_nodes[0])
    dims = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], list | tuple) else [-1]
    last = len(source.shape) - 1
    return source.numel, not any(dim in (-1, last) for dim in dims)


def _alone(node):
    """Return the Operation of a node that is its own kernel."""
    parts = node.args, dict(node.kwargs), node
    args, kwargs, value = torch.fx.node.map_arg(parts, lambda part: part.meta.get("val"))
    return replace(traced_operation.operation(node.target, args, kwargs, value), host=COMPILED)
