"""A script on fake tensors: what its step would allocate, operation by operation.

Fake tensors have a shape, a type and a device but no memory, so a step of the real script, with its
own model, loss and optimizer, runs anywhere in seconds. torch's MemTracker counts what would be
allocated, by kind. What torch.compile does to memory, and what a GPU does otherwise than a CPU, is
modelled here, each beside what it stands for.
"""

import importlib.util
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from operator import getitem
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _UpdateType
from torch.utils._pytree import tree_map_only

from Utils.base.errors import Unsupported
from Utils.device.cuda import CUDA
from Utils.diagnose.allocations import Recording
from Utils.harness import footprint
from Utils.harness.settings import batch_multiple
from Utils.run import execute


class Tracker(MemTracker):
    """torch's MemTracker that keeps a record of every operation, over several steps and in graphs
    of torch.compile's, where it leaves out what a fused kernel keeps in registers."""

    supports_higher_order_operators = True

    def __init__(self, device):
        super().__init__()
        self.device, self.live, self.phase = device, [], []
        self.in_registers, self.state_bytes = False, 0
        self.batch, self.blocks, self.sizes = 1, [], {}

    @classmethod
    def ignore_compile_internals(cls):
        return True  # what torch.compile does is not tracked, what it has compiled is

    def __enter__(self):
        super().__enter__()
        # Peaks by module are not asked for, and refuse to see a module twice.
        self._mod_tracker.__exit__()
        return self

    def __exit__(self, *error):
        self._mod_tracker.__enter__()
        super().__exit__(*error)

    def watch(self, model):
        """Tells weights and gradients from what else there is."""
        self.track_external(model)
        for parameter in model.parameters():
            parameter.register_hook(self._is_gradient)
            parameter.register_post_accumulate_grad_hook(lambda p: self._is_gradient(p.grad))

    def _is_gradient(self, gradient):
        if gradient is not None:
            self._update_and_maybe_create_winfos(gradient, _MemRefType.GRAD)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            # A number is asked for. An optimizer's is how many steps it has made, any other a loss.
            return float(self._in_opt) if args[0].is_floating_point() else int(self._in_opt)
        if self.in_registers:
            return function(*args, **kwargs or {})
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _update_snap(self, change, block, *args, **kwargs):
        super()._update_snap(change, block, *args, **kwargs)
        if change is _UpdateType.REF:
            return
        if self.sizes.pop(id(block), 0):
            self.blocks.append((len(self.live), id(block), 0))
        if change is not _UpdateType.DEL:
            self.sizes[id(block)] = block.mem_consumed
            self.blocks.append((len(self.live), id(block), block.mem_consumed))

    def _update_peak_stats(self, state):
        now = self._curr_mem_snap.get(self.device)
        if now:
            kind = _MemRefType
            known = now[kind.PARAM] + now[kind.BUFFER], now[kind.GRAD], now[kind.OPT]
            self.live.append((*known, now["Total"]))
            self.phase.append(2 if self._in_opt else int(self._mod_tracker.is_bw))

    def recording(self, multiple):
        """What was tracked. multiple: see Recording."""
        weights, gradients, state, total = np.array(self.live, dtype=np.int64).T
        state = np.minimum(state, self.state_bytes)  # an update's temporaries are none
        rest = total - weights - gradients - state
        live = np.stack([weights, gradients, state, rest], axis=1)
        phase = np.array(self.phase, dtype=np.int8)
        prime, change, sizes = self.batch // multiple, np.zeros(len(live) + 1, dtype=np.int64), {}
        for at, key, size in self.blocks:
            delta = size or -sizes[key]
            sizes[key] = size
            if delta % prime == 0:
                change[at] += delta
        return Recording(self.batch, multiple, live, phase, change.cumsum()[:-1], self.blocks)


class Kernels:
    """A graph that torch.compile has traced and cut, run operation by operation on fake tensors,
    that allocates about as Inductor's kernels would.

    A matrix product and the like read and write memory. An operation element by element becomes a
    part of the kernels that read it, reductions too, and takes no memory of its own, unless such a
    product or the graph's caller reads it.
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

    def _reads_in_a_kernel(self, node):
        """Whether it reads what it needs while a kernel computes it."""
        return node in self.fused or _is_elementwise(node) or _is_reduction(node)

    def __call__(self, arguments):
        values = dict(zip(self.inputs, arguments, strict=True))
        arguments.clear()
        for node in self.inputs:
            self._forget(node, values)
        for node in self.nodes:
            operands = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if node.op == "output":
                return self._computed(operands[0][0])
            if node.op == "get_attr":
                values[node] = getattr(self.module, node.target)
            elif node in self.fused:
                # A view shares the memory of what it shows; any other result is as it was traced.
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
        """The operands with each deferred one computed, in registers."""
        self.tracker.in_registers = True
        try:
            return tree_map_only(Deferred, Deferred.computed, operands)
        finally:
            self.tracker.in_registers = False


class Deferred:
    """An operation inside a kernel, which reads its operands when its own result is read: until
    then they stay. result: a tensor like it; None: the operation is run whenever it is read."""

    def __init__(self, function, operands, result):
        self.function, self.operands, self.result = function, operands, result

    def computed(self):
        if self.result is not None:
            return self.result
        args, kwargs = tree_map_only(Deferred, Deferred.computed, self.operands)
        return self.function(*args, **kwargs)


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
    """Which nodes are dead after each node: dict of node to a list of nodes."""
    seen, dead = set(), {}
    for node in reversed(graph.nodes):
        ended = [one for one in node.all_input_nodes if one not in seen]
        if not node.users:
            ended.append(node)
        seen.update(node.all_input_nodes)
        dead[node] = ended
    return dead


def _without_kernels(tracker):
    """A stand-in for torch.compile: Dynamo and AOTAutograd as they are, with Inductor's rules of
    what is decomposed and of what is kept for the backward, and no kernels."""
    compile = torch.compile

    def compiler(module, example):
        kernels = Kernels(tracker, module)

        def run(arguments):
            return kernels(arguments)

        run._boxed_call = True  # the caller hands over a list to be emptied, and keeps nothing
        return run

    def backend(module, example):
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


# What torch does otherwise on a GPU than on the CPU whose tensors stand for a GPU's.


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
    """scaled_dot_product_attention by the kernels that a GPU has: the first that takes the type."""
    aten = torch.ops.aten
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
    if q.dtype == torch.float32:
        found = aten._scaled_dot_product_efficient_attention(
            q, k, v, attn_mask, True, dropout_p, is_causal
        )
    else:
        found = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)
    return found[0]


def _in_float32(function):
    """A function that CUDA's autocast computes in float32 and the CPU's does not."""

    def computed(x, *args, **kwargs):
        if torch.is_autocast_enabled("cpu"):
            x = x.float()
        return function(x, *args, **kwargs)

    return computed


def _gpu_habits():
    """(what is replaced, by what), of the above and of the optimizers, which then update all
    parameters at once."""
    functional, name = torch.nn.functional, "torch.nn.functional"
    return [
        (f"{name}.scaled_dot_product_attention", _attention),
        (f"{name}.cross_entropy", _in_float32(functional.cross_entropy)),
        (f"{name}.layer_norm", _in_float32(functional.layer_norm)),
        ("torch.Tensor.softmax", _in_float32(torch.Tensor.softmax)),
        ("torch.optim.optimizer._get_foreach_kernels_supported_devices", lambda: ["cpu"]),
        ("torch.backends.cudnn.version", lambda: 91_000),
    ]


def _moved(module, function, recurse=True):
    """Module._apply, which .to() calls, for fakes, whose tied weights torch's tears apart."""
    moved = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, old in tensors.items():
                if old is not None and id(old) not in moved:
                    with torch.no_grad():
                        new = function(old)
                    if isinstance(old, torch.nn.Parameter) and new is not old:
                        new = torch.nn.Parameter(new, old.requires_grad)
                    moved[id(old)] = new, old  # which keeps the id taken
                if old is not None:
                    tensors[name] = moved[id(old)][0]
    return module


def _not_wrapped(module, **options):
    module.no_sync = nullcontext
    return module


_ALONE = {  # what a group of one process comes to; buckets are the gradients' own memory
    "torch.distributed.init_process_group": lambda *args, **options: None,
    "torch.distributed.device_mesh.init_device_mesh": lambda *args, **options: None,
    "torch.distributed.fsdp.fully_shard": _not_wrapped,
    "torch.distributed.optim.ZeroRedundancyOptimizer": (
        lambda parameters, optimizer, **options: optimizer(parameters, **options)
    ),
    "torch.nn.parallel.DistributedDataParallel": _not_wrapped,
}


@contextmanager
def fakes(technique, device, tracker):
    """Within it tensors are fakes, and what needs numbers, a driver or other processes is left out.

    device: of `devices`, a GPU one imagined.
    """
    with ExitStack() as stack:
        for target, replacement in (
            ("Utils.device.devices.choose", lambda wanted, *ranks: device),
            ("Utils.launch.trials.largest_batch", lambda args, *bounds, **more: args.batch_size),
            ("multiprocessing.forkserver.ensure_running", lambda: None),
            ("torch.compile", _without_kernels(tracker)),
            ("torch.nn.Module._apply", _moved),
            ("torch.Tensor.pin_memory", lambda self: self),  # of the host's memory
            ("torch.Tensor.share_memory_", lambda self: self),
            # An optimizer looks at the type of its parameters to choose its kernels.
            ("torch.optim.optimizer._foreach_supported_types", [FakeTensor, torch.nn.Parameter]),
            *(_gpu_habits() if isinstance(device, CUDA) else ()),
        ):
            stack.enter_context(patch(target, replacement))
        if "triton" in technique.code and importlib.util.find_spec("triton"):
            launch = "triton.runtime.jit.JITFunction.run"
            stack.enter_context(patch(launch, lambda *args, **options: None))
        if "compile" in technique.code:  # Dynamo would collect garbage, which takes half a second
            target = "torch._dynamo.config.run_gc_after_compile"
            stack.enter_context(patch(target, False))
        if "init_process_group" in technique.code:
            for target, replacement in _ALONE.items():
                stack.enter_context(patch(target, replacement))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(tracker)
        yield


class FakeRun:
    """Stands in for Run: hands out one batch, and measures nothing."""

    def __init__(self, tracker, args, model, optimizer):
        self.tracker, self.args, self.model, self.optimizer = tracker, args, model, optimizer

    def __enter__(self):
        self.tracker.batch = self.args.batch_size
        self.tracker.watch(self.model)
        # What a first step leaves: in all others the optimizer's state is beside the activations.
        for optimizer in footprint.optimizers(self.optimizer):
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return self

    def steps(self, batches):
        shape = 2, self.args.batch_size, self.args.seq_len
        yield tuple(torch.zeros(shape, dtype=torch.int64, device=self.args.device))

    def log(self, loss):
        pass

    def __exit__(self, *error):
        tensors = {
            id(storage): storage.nbytes()
            for one in footprint.optimizers(self.optimizer)
            for state in one.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.device == self.args.device
            for storage in [value.untyped_storage()]
        }
        self.tracker.state_bytes = sum(tensors.values())


def recording(technique, flags, device):
    """Runs a technique's script on fakes. flags: its command line. Returns a Recording, or, where
    it cannot be had, the reason in words."""
    tracker = Tracker(device.torch_device)
    try:
        with fakes(technique, device, tracker):
            execute(technique, flags, partial(FakeRun, tracker))
    except Unsupported as error:
        return str(error)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"cannot be forecast: {type(error).__name__}: {lines[0]}"
    return tracker.recording(batch_multiple(technique.needs))
