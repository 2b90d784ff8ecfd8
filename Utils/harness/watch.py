"""The attention kernel that ran, and the host memory that a step allocates."""

import contextlib
import ctypes
from itertools import accumulate, chain
from pathlib import Path

import torch


class OperatorWatch:
    """Which scaled_dot_product_attention really ran, and the `most` bytes that the step had
    allocated on the host and not freed, beyond what was there when it began (None where no step was
    watched), from a profiler's list of operators.

    It watches the second step, where that and the third are warm-up, so the measured ones never
    feel it. Compiled code calls the same operators and is seen too. The profiler is torch's legacy
    one: the other, Kineto, stays attached to a GPU's driver when it has ended, at a cost to every
    later launch, and once started for the host alone sees no GPU in that process any more.
    """

    ATTENTION = (
        ("flash", "_scaled_dot_product_flash_attention"),
        ("memory-efficient", "_scaled_dot_product_efficient_attention"),
        ("cuDNN", "_scaled_dot_product_cudnn_attention"),
        ("overrideable", "_scaled_dot_product_fused_attention_overrideable"),
        ("math", "_scaled_dot_product_attention_math"),
    )

    def __init__(self):
        self.names = self.most = None

    def __enter__(self):
        # The host's allocator would log that what is freed was there before.
        self.log_level = _log_level()
        self.logged, self.log_level.value = self.log_level.value, 2  # errors
        # Neither shapes, nor stacks, FLOPs and modules; but memory.
        flags = (False, True, False, False, False, torch._C._profiler._ExperimentalConfig())
        config = torch.autograd.ProfilerConfig(torch.autograd.ProfilerState.CPU, *flags)
        torch.autograd._enable_profiler_legacy(config)

    def __exit__(self, *error):
        events = [*chain(*torch.autograd._disable_profiler_legacy())]  # a list a thread
        self.log_level.value = self.logged
        self.names = {event.name() for event in events}
        changes = (e.cpu_memory_usage() for e in events if e.kind() == "memory_alloc")
        self.most = max(accumulate(changes, initial=0))

    def backend(self):
        """flash, memory-efficient, cuDNN or math, several joined by +; "none" where the step
        called no scaled_dot_product_attention; None where no step was watched."""
        if self.names is None:
            return None
        found = [
            backend
            for backend, operator in self.ATTENTION
            if any(operator in name and "backward" not in name for name in self.names)
        ]
        return "+".join(found) or "none"


def _log_level():
    """From which severity on torch's C++ code logs, as a number that can be set; where it cannot
    be had, one without effect."""
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    return ctypes.c_int()
