"""Graphs of torch.compile on fake tensors, run as Inductor's kernels would be."""

from functools import partial
from operator import getitem

import torch
from torch.utils._pytree import tree_map_only

from Utils.diagnose import recorded


class Kernels:
    """A graph of torch.compile, run operation by operation on fake tensors. It allocates about as
    much as Inductor's kernels would.

    Matrix products and the like read and write memory. An element-wise operation is fused into the
    kernels and reductions that read it and takes no memory, unless a product or the graph's caller
    reads it.
    """

    def __init__(self, tracker, module):
        self.tracker, self.module = tracker, module
        self.nodes = [node for node in module.graph.nodes if node.op != "placeholder"]
        self.inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.last_uses = _last_uses(module.graph)
        self.fused = set()
        for node in reversed(self.nodes):  # users first
            in_a_kernel = all(map(self._reads_in_a_kernel, node.users))
            if in_a_kernel and (_is_elementwise(node) or _is_view(node)):
                self.fused.add(node)
        rules = recorded.Rules(self.fused, _is_view, _is_elementwise, _is_reduction)
        self.operations = recorded.compiled([*self.inputs, *self.nodes], rules)
        self.fused -= self._written()

    def _reads_in_a_kernel(self, node):
        """Tell whether a node can read a fused operation inside a kernel."""
        return node in self.fused or _is_elementwise(node) or _is_reduction(node)

    def _written(self):
        """Return the fused operations that are written to memory, since they read too many tensors
        for each of their users to compute them again."""
        written, reads = set(), {}
        for node in self.nodes:
            if node in self.fused:
                reads[node] = set().union(*(reads.get(n, {n}) for n in node.all_input_nodes))
                if len(reads[node]) > MOST_READS and not _is_view(node):
                    written.add(node)
                    del reads[node]
        return written

    def __call__(self, arguments):
        values = dict(zip(self.inputs, arguments, strict=True))
        arguments.clear()
        for node in self.inputs:
            self._forget(node, values)
        for operation in self.operations:
            self.tracker.note(operation)
        self.tracker.in_graph = True
        try:
            return self._run(values)
        finally:
            self.tracker.in_graph = False

    def _run(self, values):
        for node in self.nodes:
            operands = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if node.op == "output":
                return self._computed(operands[0][0])
            if node.op == "get_attr":
                values[node] = getattr(self.module, node.target)
            elif node in self.fused:
                # A view shares its base's memory; any other result is as traced.
                result = None if _is_view(node) else node.meta["val"]
                values[node] = Deferred(node.target, operands, result)
            else:
                args, kwargs = self._computed(operands)
                values[node] = node.target(*args, **kwargs)
                del args, kwargs
            del operands
            self._forget(node, values)

    def _forget(self, node, values):
        for dead in self.last_uses.get(node, ()):
            del values[dead]

    def _computed(self, operands):
        """Return the operands with each deferred one computed, in registers."""
        self.tracker.in_registers = True
        try:
            return tree_map_only(Deferred, Deferred.computed, operands)
        finally:
            self.tracker.in_registers = False


class Deferred:
    """An operation in a kernel. It keeps its operands until its result is read. result: a tensor
    like it, or None to run the operation on every read."""

    def __init__(self, function, operands, result):
        self.function, self.operands, self.result = function, operands, result

    def computed(self):
        if self.result is not None:
            return self.result
        args, kwargs = tree_map_only(Deferred, Deferred.computed, self.operands)
        return self.function(*args, **kwargs)


MOST_READS = 8  # realize_acc_reads_threshold of torch._inductor.config
ELEMENTWISE = {  # of Inductor's, beside those that torch tags as such
    *("cat", "clone", "constant_pad_nd", "convert_element_type", "copy", "embedding", "full"),
    *("full_like", "gather", "index", "iota", "scalar_tensor", "select_scatter", "slice_scatter"),
    *("new_zeros", "zeros", "zeros_like", "ones", "arange"),
}
REDUCTIONS = {"amax", "amin", "any", "argmax", "max", "mean", "min", "prod", "sum", "var_mean"}


def _operator(node):
    return node.target if isinstance(node.target, torch._ops.OpOverload) else None


def _name(operator):
    return operator._schema.name.split("::")[1]


def _is_elementwise(node):
    operator = _operator(node)
    if operator is None or operator._schema.is_mutable or _is_view(node):
        return False
    if _name(operator) == "scatter":  # into a constant Inductor compares indices instead
        return _operator(node.args[0]) is torch.ops.aten.full.default
    return torch.Tag.pointwise in operator.tags or _name(operator) in ELEMENTWISE


def _is_reduction(node):
    operator = _operator(node)
    return operator is not None and _name(operator) in REDUCTIONS


def _is_view(node):
    if node.target is getitem:
        return True
    operator = _operator(node)
    if operator is None or operator._schema.is_mutable:
        return False
    return any(returned.alias_info is not None for returned in operator._schema.returns)


def _last_uses(graph):
    """Return {node: nodes that are dead after it}."""
    seen, dead = set(), {}
    for node in reversed(graph.nodes):
        ended = [used for used in node.all_input_nodes if used not in seen]
        if not node.users:
            ended.append(node)
        seen.update(node.all_input_nodes)
        dead[node] = ended
    return dead


def without_kernels(tracker):
    """Return a stand-in for torch.compile: Dynamo and AOTAutograd, with Inductor's decompositions
    and its choice of saved activations, but without kernels."""
    compile = torch.compile

    def compiler(module, example):
        kernels = Kernels(tracker, module)

        def run(arguments):
            return kernels(arguments)

        run._boxed_call = True  # the caller hands over a list to be emptied, and keeps nothing
        return run

    def backend(module, example):
        # Here, as they take seconds, and a technique that does not compile is spared them.
        from functorch.compile import min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        return aot_autograd(
            fw_compiler=compiler,
            bw_compiler=compiler,
            decompositions=select_decomp_table(),
            partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        )(module, example)

    return lambda model=None, **options: compile(model, backend=backend, dynamic=False)
