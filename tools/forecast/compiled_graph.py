"""Graphs of torch.compile on fake tensors, run as Inductor's kernels would be.

The rules are Inductor's, simplified. A matrix product, attention or the like is a separate kernel.
An element-wise operation or a reduction joins a kernel that computes or reads the same numbers in
the same order, unless its operands depend on that kernel through another one.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import getitem
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map_only

from tools.forecast.kernel_work import Operation, operation_of, tensors_in
from Utils.base.errors import Unsupported

MOST_READS_FUSED = 8  # realize_acc_reads_threshold of torch._inductor.config
# If a value depends on more tensors in memory, and several kernels need it, it is computed once and
# written.
MOST_READS = 4
LONGEST_ROW = 4096  # numbers that a block keeps in registers; each pass reads a longer row again
ELEMENTWISE = {  # Inductor's, besides those that torch tags as such
    "arange",
    "cat",
    "clone",
    "constant_pad_nd",
    "convert_element_type",
    "copy",
    "embedding",
    "full",
    "full_like",
    "gather",
    "index",
    "iota",
    "new_zeros",
    "ones",
    "scalar_tensor",
    "select_scatter",
    "slice_scatter",
    "zeros",
    "zeros_like",
}
AUTO_FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2
REDUCTIONS = {"amax", "amin", "any", "argmax", "max", "mean", "min", "prod", "sum", "var_mean"}


def _name(node):
    """Return the name of a node's ATen operator, or "" if it has none."""
    return getattr(node.target, "_opname", "")


def _arguments_in_place(operator, functional):
    """Return the arguments by name of an operator that writes to some, from its functional form.

    Inductor lets it write to its operands instead of copies, if nothing else reads them.
    """
    arguments = {}
    for argument in operator._schema.arguments:
        name = argument.name
        if argument.is_write:
            arguments[name] = functional["_all_bases"][functional[f"_{name}_base_index"]]
        else:
            arguments[name] = functional[name]
    return arguments


def _is_elementwise(node):
    name = _name(node)
    if not name or node.target._schema.is_mutable or _is_view(node):
        return False
    if name == "scatter":  # Inductor compares indices if the target is a constant
        return node.args[0].target is torch.ops.aten.full.default
    return torch.Tag.pointwise in node.target.tags or name in ELEMENTWISE


def _is_reduction(node):
    return _name(node) in REDUCTIONS


def _is_view(node):
    return node.target is getitem or getattr(node.target, "is_view", False)


def _tensor(node):
    """Return the Tensor that a node computes, or None if its result is not a tensor."""
    return next(iter(tensors_in(node.meta.get("val"))), None)


class KernelInterpreter(torch.fx.Interpreter):
    """A graph of torch.compile, run operation by operation on fake tensors.

    It allocates about as much as Inductor's kernels would: a value that is fused into its readers
    takes no memory.
    """

    def __init__(self, tracker, module, example):
        super().__init__(module)
        self.tracker = tracker
        self._boxed_call = True  # the caller hands over a list to be emptied, and keeps nothing

        # Values that all their users compute in registers; users come first
        self.fused = set()
        for node in reversed(module.graph.nodes):
            users_fuse = all(
                user in self.fused or _is_elementwise(user) or _is_reduction(user)
                for user in node.users
            )
            if users_fuse and (_is_elementwise(node) or _is_view(node)):
                self.fused.add(node)
        self.operations = _operations(module.graph.nodes, self.fused)

        # A value that reads many tensors is written, or each of its users would compute it again.
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

    def call_function(self, target, args, kwargs):
        if target is not AUTO_FUNCTIONALIZED:
            return super().call_function(target, args, kwargs)
        result = args[0](**_arguments_in_place(args[0], kwargs))
        return result, *kwargs["_all_bases"]

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

    domain: tuple  # the _domain of its nodes
    bits: int = 0  # its nodes, as in the ancestors of `_operations`
    leaves: dict = field(default_factory=dict)  # Tensors that it reads, by node
    stage: dict = field(default_factory=dict)  # number of reductions up to each of its nodes
    written: set = field(default_factory=set)  # its nodes that other kernels read

    def operation(self):
        """Return the Operation of the kernel."""
        reads = tuple(t for leaf, t in self.leaves.items() if leaf not in self.stage)
        writes = tuple(filter(None, (_tensor(n) for n in self.stage if n in self.written)))

        # Numbers that it reduces to one
        size, sums_columns = self.domain
        row = 1
        if not sums_columns:
            results = [_tensor(node).numel for node in self.stage if _is_reduction(node)]
            row = max(1, size // max(1, min(results, default=size)))

        # Reads of its inputs: one for each reduction, and one for outputs as large as they are
        passes = 1
        if row > LONGEST_ROW:
            tensors = filter(None, map(_tensor, self.stage))
            has_full_output = any(tensor.numel == size for tensor in tensors)
            passes = max(1, max(self.stage.values()) + has_full_output)

        name = "reduction" if sums_columns or row > 1 else "pointwise"
        return Operation(name, reads, writes, host="compiled", passes=passes)


def _domain(node):
    """Return how many numbers a kernel's loops run over, and whether it sums columns."""
    if not _is_reduction(node):
        return _tensor(node).numel, False
    source = _tensor(node.all_input_nodes[0])
    dims = node.args[1] if len(node.args) > 1 else None
    dims = dims if isinstance(dims, list | tuple) else [-1]
    return source.numel, not {-1, len(source.shape) - 1} & {*dims}


def _operations(nodes, fused):
    """Return the Operations of a graph's kernels, in order. fused: nodes that take no memory."""
    kernels = []  # Groups, and Operations of nodes that are separate kernels
    makers = {}  # Group that computes a node
    readers = defaultdict(list)  # Groups that read a node
    # The nodes on which each node depends, and itself: an integer with one bit for each, as sets
    # would take gigabytes with a large model
    ancestors = {}
    sources = {}  # nodes in memory that the readers of a node without memory read instead

    for number, node in enumerate(nodes):
        ancestors[node] = bit = 1 << number
        leaves = {}  # nodes that it reads from memory, in order, as keys
        for parent in reversed(node.all_input_nodes):
            ancestors[node] |= ancestors[parent]
            leaves |= sources.get(parent, {parent: None})

        readers_compute_it = len(node.users) < 2 or len(leaves) <= MOST_READS
        if _is_view(node) or (node in fused and readers_compute_it):
            sources[node] = leaves
            continue

        # Its result is written to memory, or kept for its kernel: a Group that it can join, or a
        # new one. Inductor generates the kernel of each scatter, also into a tensor that is not
        # constant.
        group = None
        if _is_elementwise(node) or _is_reduction(node) or _name(node) == "scatter":
            domain = _domain(node)
            candidates = list(chain.from_iterable(readers[leaf] for leaf in leaves))
            candidates += [makers[leaf] for leaf in leaves if leaf in makers]
            for group in dict.fromkeys(candidates):
                outside = [leaf for leaf in leaves if leaf not in group.stage]
                depends_on_group = any(ancestors[leaf] & group.bits for leaf in outside)
                if group.domain == domain and not depends_on_group:
                    break
            else:
                group = Group(domain)
                kernels.append(group)

            group.bits |= bit
            group.leaves |= {leaf: _tensor(leaf) for leaf in leaves if _tensor(leaf)}
            stage_before = max((group.stage.get(leaf, 0) for leaf in leaves), default=0)
            group.stage[node] = stage_before + _is_reduction(node)
            makers[node] = group
            for leaf in leaves:
                readers[leaf].append(group)

        # A kernel of its own
        elif _name(node) or node.target is AUTO_FUNCTIONALIZED:
            operands = node.args, dict(node.kwargs), node
            args, kwargs, result = torch.fx.node.map_arg(operands, lambda n: n.meta.get("val"))
            operator = node.target
            if operator is AUTO_FUNCTIONALIZED:
                operator = node.args[0]
                args, kwargs = (), _arguments_in_place(operator, kwargs)
            kernel = operation_of(operator, args, kwargs, result)
            kernels.append(replace(kernel, host="compiled"))

        for leaf in leaves:
            if leaf in makers and makers[leaf] is not group:
                makers[leaf].written.add(leaf)

    return [kernel.operation() if isinstance(kernel, Group) else kernel for kernel in kernels]


def without_kernels(tracker):
    """Return a replacement for torch.compile that generates no kernels.

    It runs Dynamo and AOTAutograd, with Inductor's decompositions and its choice of saved
    activations.
    """
    compile = torch.compile

    def backend(module, example):
        # They take seconds, and only techniques that compile need them.
        from functorch.compile import min_cut_rematerialization_partition  # noqa: PLC0415
        from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415
        from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

        return aot_autograd(
            fw_compiler=partial(KernelInterpreter, tracker),
            decompositions=select_decomp_table(),
            partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        )(module, example)

    def compile_on_fakes(model=None, options=None, **ignored):
        if "auto_chunker.enable" in (options or {}):
            raise Unsupported("not forecast: a loss that Inductor takes in chunks")
        return compile(model, backend=backend, dynamic=False)

    return compile_on_fakes
