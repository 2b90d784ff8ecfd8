"""Graphs of torch.compile on fake tensors, run as Inductor's kernels would be.

The rules are Inductor's, simplified. A matrix product, attention or the like is a kernel of its
own. What is computed element by element, or reduced, joins the kernel that makes or reads the same
numbers in the same order, unless something between the two needs a kernel of its own.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from operator import getitem
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map_only

from tools.forecast.kernel_work import COMPILED, Operation, operation_of, tensors_in
from Utils.base.errors import Unsupported

MOST_READS_FUSED = 8  # realize_acc_reads_threshold of torch._inductor.config
MOST_READS = 4  # of memory, beyond which what several kernels need is computed once and written
LONGEST_ROW = 4096  # numbers that one block keeps in registers; of a longer row each pass reads
# Of Inductor's, beside those that torch tags as such.
ELEMENTWISE = {"cat", "clone", "constant_pad_nd", "convert_element_type", "copy", "embedding"}
ELEMENTWISE |= {"full", "full_like", "gather", "index", "iota", "scalar_tensor", "select_scatter"}
ELEMENTWISE |= {"slice_scatter", "new_zeros", "zeros", "zeros_like", "ones", "arange"}
REDUCTIONS = {"amax", "amin", "any", "argmax", "max", "mean", "min", "prod", "sum", "var_mean"}


def _name(node):
    """Return the name of a node's operator of ATen, or "" for what is none."""
    return getattr(node.target, "_opname", "")


def _is_elementwise(node):
    name = _name(node)
    if not name or node.target._schema.is_mutable or _is_view(node):
        return False
    if name == "scatter":  # into a constant Inductor compares indices instead
        return node.args[0].target is torch.ops.aten.full.default
    return torch.Tag.pointwise in node.target.tags or name in ELEMENTWISE


def _is_reduction(node):
    return _name(node) in REDUCTIONS


def _is_view(node):
    return node.target is getitem or getattr(node.target, "is_view", False)


def _tensor(node):
    """Return the Tensor of what a node computes, or None where it is no tensor."""
    return next(iter(tensors_in(node.meta.get("val"))), None)


class Kernels(torch.fx.Interpreter):
    """A graph of torch.compile, run operation by operation on fake tensors. It allocates about as
    much as Inductor's kernels would: what is fused into its readers takes no memory.
    """

    def __init__(self, tracker, module, example):
        super().__init__(module)
        self.tracker = tracker
        self._boxed_call = True  # the caller hands over a list to be emptied, and keeps nothing
        self.fused = set()
        for node in reversed(module.graph.nodes):  # users first
            users = (n in self.fused or _is_elementwise(n) or _is_reduction(n) for n in node.users)
            if (_is_elementwise(node) or _is_view(node)) and all(users):
                self.fused.add(node)
        self.operations = _operations(module.graph.nodes, self.fused)
        # One that reads many tensors is written, lest each of its users compute it again.
        reads = {}
        for node in module.graph.nodes:
            if node in self.fused:
                reads[node] = set().union(*(reads.get(n, {n}) for n in node.all_input_nodes))
                if len(reads[node]) > MOST_READS_FUSED and not _is_view(node):
                    self.fused.remove(node)
                    del reads[node]

    def __call__(self, arguments):
        for operation in self.operations:
            self.tracker.note(operation)
        with patch.object(self.tracker, "in_graph", True):
            results = self.boxed_run(arguments)
        self.env = {}  # it would keep the results
        return results

    def run_node(self, node):
        operands = self.fetch_args_kwargs_from_env(node)
        if node in self.fused:
            return Deferred(node, operands)
        with patch.object(self.tracker, "in_registers", True):
            args, kwargs = tree_map_only(Deferred, Deferred.computed, operands)
        result = getattr(self, node.op)(node.target, args, kwargs)
        return result if node.users or node.op == "output" else None


@dataclass(eq=False)
class Deferred:
    """A node in a kernel. It keeps its operands until its result is read."""

    node: torch.fx.Node
    operands: tuple

    def computed(self):
        """Return a tensor as traced, or a view, which shares its base's memory."""
        if not _is_view(self.node):
            return self.node.meta["val"]
        args, kwargs = tree_map_only(Deferred, Deferred.computed, self.operands)
        return self.node.target(*args, **kwargs)


@dataclass(eq=False)
class Group:
    """Nodes of a graph that are one kernel."""

    domain: tuple  # as of its nodes
    bits: int = 0  # of its nodes
    leaves: dict = field(default_factory=dict)  # Tensors that it reads, by node
    stage: dict = field(default_factory=dict)  # of each of its nodes: the reductions before it
    written: set = field(default_factory=set)  # its nodes that others read

    def operation(self):
        """Return the Operation of the kernel."""
        reads = tuple(t for leaf, t in self.leaves.items() if leaf not in self.stage)
        writes = tuple(filter(None, (_tensor(n) for n in self.stage if n in self.written)))
        size, sums_columns = self.domain
        row = 1  # numbers that it reduces to one
        if not sums_columns:
            results = [_tensor(node).numel for node in self.stage if _is_reduction(node)]
            row = max(1, size // max(1, min(results, default=size)))
        passes = 1
        if row > LONGEST_ROW:
            tensors = filter(None, map(_tensor, self.stage))
            last = any(tensor.numel == size for tensor in tensors)
            passes = max(1, max(self.stage.values()) + last)
        name = "reduction" if sums_columns or row > 1 else "pointwise"
        return Operation(name, reads, writes, host=COMPILED, passes=passes)


def _domain(node):
    """Return the numbers that a kernel's loops run over, and whether it sums columns."""
    if not _is_reduction(node):
        return _tensor(node).numel, False
    source = _tensor(node.all_input_nodes[0])
    dims = node.args[1] if len(node.args) > 1 else None
    dims = dims if isinstance(dims, list | tuple) else [-1]
    return source.numel, not {-1, len(source.shape) - 1} & {*dims}


def _operations(nodes, fused):
    """Return the Operations of a graph's kernels, in order. fused: nodes that take no memory."""
    kernels = []  # Groups, and Operations of nodes that are their own kernels
    maker = {}  # Group that computes a node
    readers = defaultdict(list)  # Groups that read a node
    ancestors = {}  # of each node, with itself: a bit for each
    sources = {}  # of a node without memory: those that its readers read in its place
    for number, node in enumerate(nodes):
        bit = ancestors[node] = 1 << number
        leaves = {}  # what it reads from memory, in order
        for parent in reversed(node.all_input_nodes):
            ancestors[node] |= ancestors[parent]
            leaves |= sources.get(parent, {parent: None})
        again = len(node.users) < 2 or len(leaves) <= MOST_READS  # each of its readers computes it
        if _is_view(node) or (node in fused and again):
            sources[node] = leaves
            continue
        group = None
        # Inductor makes the kernel of a scatter, into a constant or not.
        if _is_elementwise(node) or _is_reduction(node) or _name(node) == "scatter":
            domain = _domain(node)
            near = [group for leaf in leaves for group in readers[leaf]]
            near += [maker[leaf] for leaf in leaves if leaf in maker]
            for group in dict.fromkeys(near):
                outside = [leaf for leaf in leaves if leaf not in group.stage]
                between = any(ancestors[leaf] & group.bits for leaf in outside)
                if group.domain == domain and not between:
                    break
            else:
                group = Group(domain)
                kernels.append(group)
            group.bits |= bit
            group.leaves |= {leaf: _tensor(leaf) for leaf in leaves if _tensor(leaf)}
            before = max((group.stage.get(leaf, 0) for leaf in leaves), default=0)
            group.stage[node] = before + _is_reduction(node)
            maker[node] = group
        elif _name(node):
            parts = node.args, dict(node.kwargs), node
            call = torch.fx.node.map_arg(parts, lambda part: part.meta.get("val"))
            kernels.append(replace(operation_of(node.target, *call), host=COMPILED))
        for leaf in leaves:
            if group:
                readers[leaf].append(group)
            if leaf in maker and maker[leaf] is not group:
                maker[leaf].written.add(leaf)
    return [each.operation() if isinstance(each, Group) else each for each in kernels]


def without_kernels(tracker):
    """Return a stand-in for torch.compile: Dynamo and AOTAutograd, with Inductor's decompositions
    and its choice of saved activations, but without kernels.
    """
    compile = torch.compile

    def backend(module, example):
        # Here, as they take seconds, and a technique that does not compile is spared them.
        from functorch.compile import min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        return aot_autograd(
            fw_compiler=partial(Kernels, tracker),
            decompositions=select_decomp_table(),
            partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        )(module, example)

    def compile_on_fakes(model=None, options=None, **more):
        if "auto_chunker.enable" in (options or {}):
            raise Unsupported("not forecast: a loss that Inductor takes in chunks")
        return compile(model, backend=backend, dynamic=False)

    return compile_on_fakes
