"""The history of an allocator, for torch's memory viewer."""

from contextlib import contextmanager

import torch

from Utils.device.cuda import CUDA


@contextmanager
def memory_history(device):
    """Yield a dict, filled at the end with a snapshot for torch's memory viewer."""
    snapshot = {}
    if isinstance(device, CUDA):
        device.cuda.memory._record_memory_history()
        try:
            yield snapshot
            snapshot |= device.cuda.memory._snapshot()
        finally:
            device.cuda.memory._record_memory_history(enabled=None)
        return

    from torch.cuda._memory_viz import _profile_to_snapshot  # noqa: PLC0415  (only MEMORY=1 needs it)

    profiler = torch.profiler.profile
    with profiler(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        yield snapshot
    snapshot |= _profile_to_snapshot(profile)
