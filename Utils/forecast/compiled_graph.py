"""Graphs of torch.compile on fake tensors, run as Inductor's kernels would be."""

from functools import partial
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map_only

from Utils.forecast import fusion_groups
from Utils.forecast.fusion_groups import is_elementwise, is_reduction, is_view

MOST_READS = 8  # realize_acc_reads_threshold of torch._inductor.config


class Kernels:
    """A graph of torch.compile, run operation by operation on fake tensors. It allocates about as
    much as Inductor's kernels would.

    Matrix products and the like read and write memory. An element-wise operation is fused into the
    kernels and reductions that read it and takes no memory, unless a product or the graph's caller
    reads it.
    """

    def __init__(self, tracker, module, example):
        self.tracker = tracker
        self.module = module
        self._boxed_call = True  # the caller hands over a list to be emptied, and keeps nothing
        self.nodes = [node for node in module.graph.nodes if node.op != "placeholder"]
        self.inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        used = set()
        self.last_uses = {}
        self.fused = set()
        for node in reversed(module.graph.nodes):  # users first
            last = [n for n in node.all_input_nodes if n not in used]
            self.last_uses[node] = last if node.users else [*last, node]
            used.update(node.all_input_nodes)
            users = (n in self.fused or is_elementwise(n) or is_reduction(n) for n in node.users)
            if (is_elementwise(node) or is_view(node)) and all(users):
                self.fused.add(node)
        self.operations = fusion_groups.kernels(module.graph.nodes, self.fused)
        self.fused -= self._written()

    def _written(self):
        """Return the fused operations that are written to memory, since they read too many tensors
        for each of their users to compute them again."""
        written = set()
        reads = {}
        for node in self.nodes:
            if node in self.fused:
                reads[node] = set().union(*(reads.get(n, {n}) for n in node.all_input_nodes))
                if len(reads[node]) > MOST_READS and not is_view(node):
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
        with patch.object(self.tracker, "in_graph", True):
            return self._run(values)

    def _run(self, values):
        for node in self.nodes:
            operands = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if node.op == "output":
                return self._computed(operands[0][0])
            if node.op == "get_attr":
                values[node] = getattr(self.module, node.target)
            elif node in self.fused:
                # A view shares its base's memory; any other result is as traced.
                result = None if is_view(node) else node.meta["val"]
                values[node] = Deferred(node.target, operands, result)
            else:
                args, kwargs = self._computed(operands)
                values[node] = node.target(*args, **kwargs)
                del args, kwargs
            del operands
            self._forget(node, values)

    def _forget(self, node, values):
        for dead in self.last_uses[node]:
            del values[dead]

    def _computed(self, operands):
        """Return the operands with each deferred one computed, in registers."""
        with patch.object(self.tracker, "in_registers", True):
            return tree_map_only(Deferred, Deferred.computed, operands)


class Deferred:
    """An operation in a kernel. It keeps its operands until its result is read. result: a tensor
    like it, or None to run the operation on every read."""

    def __init__(self, function, operands, result):
        self.function = function
        self.operands = operands
        self.result = result

    def computed(self):
        if self.result is not None:
            return self.result
        args, kwargs = tree_map_only(Deferred, Deferred.computed, self.operands)
        return self.function(*args, **kwargs)


def without_kernels(tracker):
    """Return a stand-in for torch.compile: Dynamo and AOTAutograd, with Inductor's decompositions
    and its choice of saved activations, but without kernels."""
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

    return lambda model=None, **options: compile(model, backend=backend, dynamic=False)
