"""A script on fake tensors, which have no memory: the allocations of its step by operation.

torch's MemTracker counts them by kind. The differences of a GPU are modelled here, those of
torch.compile in `compiled_graph`.
"""

import importlib.util
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _UpdateType

from tools.forecast.compiled_graph import without_kernels
from tools.forecast.kernel_work import COMPILED, Operation, Work, operation_of, tensors_in
from Utils.base import errors
from Utils.base.errors import Unsupported
from Utils.device.cuda import CUDA
from Utils.harness import memory_kinds
from Utils.harness.settings import MULTIPLE
from Utils.run import execute

KINDS = ("weights", "gradients", "optimizer state", "activations")  # the last: all other tensors
PHASES = ("forward", "backward", "update")
CROSS_ENTROPY = torch.nn.functional.cross_entropy  # before it is replaced
PAGED = 100_000  # bytes from which bitsandbytes allocates a moment in managed memory


@dataclass
class Recording:
    """The bytes that would be allocated after each operation of a step."""

    batch: int  # sequences a step, a prime times multiple
    multiple: int  # the batch must be one of it
    live: np.ndarray  # int64 (operations, KINDS), bytes
    phase: np.ndarray  # (operations,), indices of PHASES
    growing: np.ndarray  # (operations,), bytes of activations that are in proportion to the batch
    work: Work | None = None  # what the step computes, at the prime

    def at(self, batch):
        """Return the Recording at another batch size: each tensor's size is constant, or
        proportional to the batch, a prime that divides no constant.
        """
        grown = self.growing * batch // self.batch
        live = self.live.copy()
        live[:, -1] += grown - self.growing
        return replace(self, batch=batch, live=live, growing=grown)

    @property
    def total(self):
        """Bytes of all tensors, (operations,)."""
        return self.live.sum(axis=1)

    def largest_batch(self, size):
        """Return the largest batch with a peak of at most `size` bytes, or 0."""
        room = size - (self.total - self.growing)
        if (room < 0).any():
            return 0
        grows = self.growing > 0
        most = (room[grows] * self.batch // self.growing[grows]).min()
        return int(most) // self.multiple * self.multiple


class Tracker(MemTracker):
    """A MemTracker that records every operation, over several steps and in graphs of torch.compile,
    without the values that a fused kernel keeps in registers.
    """

    supports_higher_order_operators = True

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.live = []  # after each operation: phase, bytes of weights, gradients, state, total
        self.changes = []  # (operation before which, bytes)
        self.state_bytes = 0  # of the optimizer
        self.paged_bytes = 0  # of them those that need not fit
        self.work = Work()
        self.in_graph = False  # of torch.compile, whose kernels are noted as a whole
        self.in_registers = False

    @classmethod
    def ignore_compile_internals(cls):
        return True  # track the compiled graph, not the compiler

    def __enter__(self):
        super().__enter__()
        # Peaks by module are not needed, and fail on a module that is seen twice.
        self._mod_tracker.__exit__()
        return self

    def watch(self, model):
        """Mark the model's weights and gradients."""
        self.track_external(model)
        for parameter in model.parameters():
            parameter.register_hook(self._is_gradient)
            parameter.register_post_accumulate_grad_hook(lambda p: self._is_gradient(p.grad))

    def _is_gradient(self, gradient):
        if gradient is not None:
            self._update_and_maybe_create_winfos(gradient, _MemRefType.GRAD)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            # The value of an optimizer's scalar is its step count, of any other a loss.
            self.note(Operation("_local_scalar_dense", (), ()))
            return float(self._in_opt) if args[0].is_floating_point() else int(self._in_opt)
        if self.in_registers:
            return function(*args, **kwargs or {})
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if not self.in_graph and function.namespace != "prim":
            self.note(operation_of(function, args, kwargs or {}, result))
        return result

    def note(self, operation):
        """Add an Operation to the step's work."""
        phase = 2 if self._in_opt else int(self._mod_tracker.is_bw)
        precision = "tf32" if torch.get_float32_matmul_precision() == "high" else "float32"
        self.work.add(replace(operation, phase=phase, precision=precision))

    def _update_snap(self, change, block, old_mem_consumed=0, old_reftype=None):
        super()._update_snap(change, block, old_mem_consumed, old_reftype)
        size = block.mem_consumed
        grown = {_UpdateType.ADD: size, _UpdateType.DEL: -size}
        grown[_UpdateType.SIZE] = size - old_mem_consumed
        self.changes.append((len(self.live), grown.get(change, 0)))

    def _update_peak_stats(self, state):
        now = self._curr_mem_snap.get(self.device)
        if now:
            weights = now[_MemRefType.PARAM] + now[_MemRefType.BUFFER]
            sizes = now[_MemRefType.GRAD], now[_MemRefType.OPT], now["Total"]
            phase = 2 if self._in_opt else int(self._mod_tracker.is_bw)
            self.live.append((phase, weights, *sizes))

    def recording(self, multiple):
        """Return the Recording. multiple: see Recording."""
        phase, weights, gradients, state, total = np.array(self.live, dtype=np.int64).T
        state = np.minimum(state, self.state_bytes)  # without an update's temporaries
        activations = total - weights - gradients - state
        live = np.stack([weights, gradients, state - self.paged_bytes, activations], axis=1)
        batch = self.work.batch
        prime = self.work.batch = batch // multiple
        at, size = np.array(self.changes, dtype=np.int64).T
        changes = np.bincount(at, np.where(size % prime, 0, size), len(live) + 1)
        growing = changes.cumsum()[:-1].astype(np.int64)
        return Recording(batch, multiple, live, phase.astype(np.int8), growing, self.work)


# Behaviour of torch on a GPU that differs from the CPU tensors that stand for it.
def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """Run scaled_dot_product_attention with a GPU's first kernel for the type."""
    aten = torch.ops.aten
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
    if q.dtype == torch.float32:
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(q, k, v, attn_mask, True, dropout_p, is_causal)[0]
    return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]


def _in_float32(function):
    """Wrap a function that CUDA's autocast computes in float32 and the CPU's does not."""

    def computed(x, *args, **kwargs):
        if torch.is_autocast_enabled("cpu"):
            x = x.float()
        return function(x, *args, **kwargs)

    return computed


def _cross_entropy(logits, targets, **options):
    """Compute cross_entropy as CUDA's autocast does: log_softmax in the type of the logits, which
    it hands on as a dtype, and nll_loss in float32. The CPU's does neither.
    """
    if not torch.is_autocast_enabled("cpu"):
        return CROSS_ENTROPY(logits, targets, **options)
    with torch.autocast("cpu", enabled=False):
        logarithms = torch.log_softmax(logits, 1, dtype=logits.dtype)
        return torch.nn.functional.nll_loss(logarithms.float(), targets, **options)


def _moved(module, function, recurse=True):
    """Replace Module._apply, which .to() calls: torch's version unties the weights of fakes."""
    moved = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, old in tensors.items():
                if old is not None and old not in moved:
                    with torch.no_grad():
                        moved[old] = function(old)
                    if isinstance(old, torch.nn.Parameter) and moved[old] is not old:
                        moved[old] = torch.nn.Parameter(moved[old], old.requires_grad)
                tensors[name] = moved.get(old)
    return module


@contextmanager
def fakes(technique, device, tracker):
    """Make tensors fakes, and replace what needs values or a driver. device: of Utils.device."""

    def launched(kernel, *args, **options):  # by Triton
        operands = dict(zip(kernel.arg_names, args, strict=False))
        # As its source names them; the second time they are in L2.
        loaded = set(re.findall(r"tl\.load\((\w+)", kernel.src))
        stored = set(re.findall(r"tl\.store\((\w+)", kernel.src))
        # A pointer with another name is taken to be both.
        reads = tensors_in([operands[name] for name in operands if name not in stored - loaded])
        writes = tensors_in([operands[name] for name in operands if name not in loaded - stored])
        tracker.note(Operation(kernel.__name__, reads, writes, host=COMPILED))

    replacements = {
        "Utils.device.device_choice.choose": lambda name, *ranks: device,
        "Utils.harness.batch_trials.largest_batch": lambda args, *bounds, **more: args.batch_size,
        "multiprocessing.forkserver.ensure_running": lambda: None,
        "torch.compile": without_kernels(tracker),
        "torch.nn.Module._apply": _moved,
        "torch.Tensor.pin_memory": lambda self: self,  # of the host's memory
        "torch.Tensor.share_memory_": lambda self: self,
        # An optimizer chooses its kernels by the type of its parameters.
        "torch.optim.optimizer._foreach_supported_types": [FakeTensor, torch.nn.Parameter],
    }
    if isinstance(device, CUDA):  # the above, and optimizers that update all parameters at once
        replacements |= {
            "torch.nn.functional.scaled_dot_product_attention": _attention,
            "torch.nn.functional.cross_entropy": _cross_entropy,
            "torch.nn.functional.layer_norm": _in_float32(torch.nn.functional.layer_norm),
            "torch.Tensor.softmax": _in_float32(torch.Tensor.softmax),
            "torch.optim.optimizer._get_foreach_kernels_supported_devices": lambda: ["cpu"],
            "torch.backends.cudnn.version": lambda: 91_000,
        }
    if "triton" in technique.code and importlib.util.find_spec("triton"):
        replacements["triton.runtime.jit.JITFunction.run"] = launched
    if "compile" in technique.code:  # Dynamo would collect garbage, which takes half a second
        replacements["torch._dynamo.config.run_gc_after_compile"] = False
    with ExitStack() as stack:
        for target, replacement in replacements.items():
            stack.enter_context(patch(target, replacement))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(tracker)
        yield


@contextmanager
def run_on_fakes(tracker, args, model, optimizer):
    """Replace Run: yield one batch and measure nothing."""
    tracker.watch(model)
    optimizers = memory_kinds.optimizers(optimizer)
    # After a first step the optimizer's state is live beside the activations.
    for optimizer in optimizers:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def steps(batches):
        tracker.work = Work(args.batch_size)
        shape = 2, args.batch_size, args.seq_len
        yield tuple(torch.zeros(shape, dtype=torch.int64, device=args.device))

    yield SimpleNamespace(steps=steps, log=lambda loss: None)
    on_gpu = isinstance(args.hardware, CUDA)  # where pages move to the host
    sizes = {}  # bytes, by storage and whether they need not fit
    for optimizer in optimizers:
        paged = on_gpu and getattr(optimizer, "is_paged", False)
        values = [value for state in optimizer.state.values() for value in state.values()]
        for value in filter(torch.is_tensor, values):
            storage = value.untyped_storage()
            if value.device == args.device:
                sizes[id(storage), paged and storage.nbytes() >= PAGED] = storage.nbytes()
    tracker.state_bytes = sum(sizes.values())
    tracker.paged_bytes = sum(size for (_, paged), size in sizes.items() if paged)


def recording(technique, flags, device):
    """Run a technique's script on fakes, with these flags. Return a Recording, or why not."""
    if "distributed" in technique.needs:
        return "runs in several processes, which are not forecast"
    tracker = Tracker(device.torch_device)
    try:
        with fakes(technique, device, tracker):
            execute(technique, flags, partial(run_on_fakes, tracker))
    except Unsupported as error:
        return str(error)
    except Exception as error:
        return f"cannot be forecast: {type(error).__name__}: {errors.first_line(error)}"
    return tracker.recording(batch_multiple(technique.needs))


def batch_multiple(needs):
    """Return the number by which these needs require a rank's sequences to be divisible."""
    return max((int(n[1]) for n in map(MULTIPLE.fullmatch, needs) if n), default=1)
