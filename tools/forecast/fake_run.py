"""Runs of a script on fake tensors, which have no memory, to record its allocations.

torch's MemTracker counts them after each operation. This module models how a GPU differs, and
`compiled_graph` how torch.compile does.
"""

import gc
import importlib.util
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _UpdateType

from tools.forecast.compiled_graph import without_kernels
from tools.forecast.kernel_work import Operation, StepOperations, operation_of, tensors_in
from Utils.base import errors
from Utils.device.cuda import CUDA
from Utils.harness import memory_kinds
from Utils.harness.settings import MULTIPLE
from Utils.run import execute

CROSS_ENTROPY = torch.nn.functional.cross_entropy  # before it is replaced
PAGED = 100_000  # bytes from which bitsandbytes allocates a moment in managed memory


@dataclass
class Recording:
    """The bytes that would be allocated after each operation of a step."""

    batch: int  # sequences a step, a prime times `multiple`
    multiple: int  # the batch size must be a multiple of this
    total: np.ndarray  # (operations,), bytes of all tensors
    growing: np.ndarray  # (operations,), the bytes that are proportional to the batch
    work: StepOperations | None = None  # the step's operations, recorded at the prime

    def peak(self, batch):
        """Return the most bytes of all tensors together at another batch size.

        The size of each tensor is constant or proportional to the batch. The recorded batch has a
        prime factor that divides no constant, so the two can be told apart.
        """
        grown = self.growing * batch // self.batch
        return int((self.total + grown - self.growing).max())

    def largest_batch(self, size):
        """Return the largest batch with a peak of at most `size` bytes, or 0."""
        room = size - (self.total - self.growing)
        if (room < 0).any():
            return 0

        grows = self.growing > 0
        largest = (room[grows] * self.batch // self.growing[grows]).min()
        return int(largest) // self.multiple * self.multiple


class Tracker(MemTracker):
    """A MemTracker that records every operation.

    It records several steps, and graphs of torch.compile without the values that a fused kernel
    keeps in registers.
    """

    supports_higher_order_operators = True

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.total = []  # bytes of all tensors after each operation
        self.changes = []  # (number of operations before it, bytes)
        self.paged_bytes = 0  # optimizer state that need not fit
        self.work = StepOperations()
        self.in_graph = False  # in a graph of torch.compile, whose kernels are noted together
        self.in_registers = False

    @classmethod
    def ignore_compile_internals(cls):
        return True  # track the compiled graph, not the compiler

    def __enter__(self):
        super().__enter__()
        # Peaks by module are not needed, and fail if a module is seen twice.
        self._mod_tracker.__exit__()
        return self

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            # An optimizer reads its step count, which is 1; other code reads a loss.
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
        precision = "tf32" if torch.get_float32_matmul_precision() == "high" else "float32"
        self.work.add(replace(operation, in_update=self._in_opt, precision=precision))

    def _update_snap(self, change, block, old_mem_consumed=0, old_reftype=None):
        super()._update_snap(change, block, old_mem_consumed, old_reftype)
        size = block.mem_consumed
        growth = {
            _UpdateType.ADD: size,
            _UpdateType.DEL: -size,
            _UpdateType.SIZE: size - old_mem_consumed,
        }
        self.changes.append((len(self.total), growth.get(change, 0)))

    def _update_peak_stats(self, state):
        now = self._curr_mem_snap.get(self.device)
        if now:
            self.total.append(now["Total"])

    def recording(self, multiple):
        """Return the Recording. multiple: see Recording."""
        # A tensor whose size the prime divides grows with the batch.
        batch = self.work.batch
        prime = batch // multiple
        self.work.batch = prime
        operation, size = np.array(self.changes, dtype=np.int64).T
        growing_size = np.where(size % prime, 0, size)
        changes = np.bincount(operation, growing_size, len(self.total) + 1)
        growing = changes.cumsum()[:-1].astype(np.int64)
        total = np.array(self.total, dtype=np.int64) - self.paged_bytes
        return Recording(batch, multiple, total, growing, self.work)


# torch's behaviour on a GPU, for operations that differ on the CPU tensors of this run


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    """Run scaled_dot_product_attention with the kernel that a GPU prefers for the type."""
    aten = torch.ops.aten
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
    if q.dtype == torch.float32:
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(q, k, v, attn_mask, True, dropout_p, is_causal)[0]
    return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]


def _in_float32(function):
    """Wrap a function that autocast computes in float32 on CUDA, but not on a CPU."""

    def computed(x, *args, **kwargs):
        if torch.is_autocast_enabled("cpu"):
            x = x.float()
        return function(x, *args, **kwargs)

    return computed


def _cross_entropy(logits, targets, **options):
    """Compute cross_entropy as CUDA's autocast does.

    It computes log_softmax in the type of the logits, which it passes as `dtype`, and nll_loss in
    float32. The CPU's autocast does neither.
    """
    if not torch.is_autocast_enabled("cpu"):
        return CROSS_ENTROPY(logits, targets, **options)
    with torch.autocast("cpu", enabled=False):
        logarithms = torch.log_softmax(logits, 1, dtype=logits.dtype)
        return torch.nn.functional.nll_loss(logarithms.float(), targets, **options)


def _moved(module, function, recurse=True):
    """Replace Module._apply, which .to() calls: torch's version swaps no tied weights of fakes."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = function(tensor)
    return module


def _launcher(tracker):
    """Return a replacement for the method that launches a Triton kernel, to record it."""

    def launch(kernel, *args, **options):
        operands = dict(zip(kernel.arg_names, args, strict=False))
        loaded = set(re.findall(r"tl\.load\((\w+)", kernel.src))
        stored = set(re.findall(r"tl\.store\((\w+)", kernel.src))

        # An operand that is neither loaded nor stored by its name counts as both. If it is loaded
        # several times, it counts once: the second time it is in L2.
        reads = tensors_in([operands[name] for name in operands if name not in stored - loaded])
        writes = tensors_in([operands[name] for name in operands if name not in loaded - stored])
        tracker.note(Operation(kernel.__name__, reads, writes, host="compiled"))

    return launch


@contextmanager
def fakes(technique, device, tracker):
    """Make tensors fakes, and replace functions that need values or a driver.

    device: a device of Utils.device.
    """
    replacements = {
        "Utils.device.device_choice.choose": lambda name, *ranks: device,
        "beyond.memory.batch_trials.with_largest_batch": lambda args, *bounds, **more: args,
        "multiprocessing.forkserver.ensure_running": lambda: None,
        "torch.compile": without_kernels(tracker),
        "torch.nn.Module._apply": _moved,
        "torch.Tensor.pin_memory": lambda self: self,
        "torch.Tensor.share_memory_": lambda self: self,
        # An optimizer chooses its kernels by the type of its parameters.
        "torch.optim.optimizer._foreach_supported_types": [FakeTensor, torch.nn.Parameter],
    }
    if isinstance(device, CUDA):
        replacements |= {
            "torch.nn.functional.scaled_dot_product_attention": _attention,
            "torch.nn.functional.cross_entropy": _cross_entropy,
            "torch.nn.functional.layer_norm": _in_float32(torch.nn.functional.layer_norm),
            "torch.Tensor.softmax": _in_float32(torch.Tensor.softmax),
            # Optimizers update all parameters at once.
            "torch.optim.optimizer._get_foreach_kernels_supported_devices": lambda: ["cpu"],
            "torch.backends.cudnn.version": lambda: 91_000,
        }
    if "triton" in technique.code and importlib.util.find_spec("triton"):
        replacements["triton.runtime.jit.JITFunction.run"] = _launcher(tracker)
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
    # Make the state of optimizers, which later steps have beside the activations.
    optimizers = memory_kinds.optimizers(optimizer)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def steps(batches):
        tracker.work = StepOperations(args.batch_size)
        shape = 2, args.batch_size, args.seq_len
        yield tuple(torch.zeros(shape, dtype=torch.int64, device=args.device))

    yield SimpleNamespace(steps=steps, log=lambda loss: None)

    # A GPU can move pages of managed memory to the host.
    if isinstance(args.hardware, CUDA):
        sizes = {}  # by storage
        for optimizer in optimizers:
            states = optimizer.state.values() if getattr(optimizer, "is_paged", False) else ()
            for value in filter(torch.is_tensor, chain.from_iterable(s.values() for s in states)):
                storage = value.untyped_storage()
                sizes[id(storage)] = storage.nbytes()
        tracker.paged_bytes = sum(size for size in sizes.values() if size >= PAGED)


def recording(technique, flags, device):
    """Return the Recording of a technique's script with these flags, or the reason for none."""
    if "distributed" in technique.needs:
        return "runs in several processes, which are not forecast"

    gc.disable()  # a collection after torch's FakeTensorMode has crashed
    tracker = Tracker(device.torch_device)
    try:
        with fakes(technique, device, tracker):
            execute(technique, flags, partial(run_on_fakes, tracker))
    except errors.Unsupported as error:
        return str(error)
    except Exception as error:
        return f"cannot be forecast: {type(error).__name__}: {errors.first_line(error)}"
    return tracker.recording(batch_multiple(technique.needs))


def batch_multiple(needs):
    """Return the number that must divide a rank's sequences, by a technique's needs."""
    matches = map(MULTIPLE.fullmatch, needs)
    return max((int(match[1]) for match in matches if match), default=1)
