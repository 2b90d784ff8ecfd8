"""The device of a run, chosen by name.

One object, a CPU, CUDA or MPS, measures time and memory. The clock is read at step boundaries only:

- On a GPU a boundary is an event in the stream. Recording it does not wait for the GPU; the times
  are read after the last step, behind the only synchronization.
- On a CPU work is finished when the call returns, so a boundary is `time.perf_counter()`.

The state of the device is read outside the timed steps: `other_processes` when the device is
chosen, `counters()` before the first timed step and after the last, `readings()` after the last.
"""

import torch

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.device import cgroup
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS

AUTO = "use auto for the best device available"


def choose(wanted, local_rank=0, local_world_size=1, partners=()):
    """Return the device of that name: auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:1, mps.

    local_rank, local_world_size: of this process on this machine. Each rank takes a separate GPU.
    partners: pids of runs that take turns with this one.
    Raises UserError where there is no such device.
    """
    if wanted == "auto":
        if torch.cuda.is_available():
            wanted = "cuda"
        else:
            wanted = "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    known = device is not None and device.type in ("cpu", "cuda", "mps")
    if not known or str(device) != wanted:  # torch takes cuda:256 for cuda:0
        raise UserError(
            f"--device {wanted}: no such device", "choose auto, cpu, cuda, cuda:N or mps"
        )
    if device.type == "cuda" and local_world_size > 1:
        if device.index is not None:
            raise UserError(f"--device {wanted}: each rank takes a GPU of its own", "use cuda")
        if (count := torch.cuda.device_count()) < local_world_size:
            raise UserError(f"{local_world_size} ranks, and torch sees {gpus(count)}")
        device = torch.device("cuda", local_rank)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(
            f"--device {wanted}: torch {torch.__version__} sees {count} CUDA devices", AUTO
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device mps: torch {torch.__version__} sees no Apple GPU", AUTO)
    if device.type == "cuda":
        return CUDA(torch.device("cuda", device.index or 0), partners=partners)
    return MPS(device) if device.type == "mps" else CPU()


def gpus(count):
    return f"{count} GPU{'s' * (count != 1)}"


def available(wanted):
    """Return the number of ranks that fit this machine, and the GPUs or cores for them in words.

    One rank per GPU, or per usable core. wanted: as for `choose`.
    """
    device = choose(wanted)
    if isinstance(device, CUDA):
        count = 1 if ":" in wanted else torch.cuda.device_count()
        return count, gpus(count)
    if isinstance(device, MPS):
        return 1, gpus(1)
    cores = max(1, int(cgroup.usable_cpus()))
    return cores, f"{cores} core{'s' * (cores != 1)}"


def try_out(device):
    """Multiply two small matrices on a device. Return the error in one line, or ""."""
    try:
        ones = torch.ones(64, 64, device=device.torch_device)
        return "" if (ones @ ones).sum().item() == 64**3 else "it computes a wrong product"
    except Exception as error:  # drivers cause errors of many types
        return errors.first_line(error)


def is_out_of_memory(error):
    """Return whether an exception means out of memory, on any device."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    words += ("cublas_status_alloc_failed",)  # no memory for the workspace of cuBLAS
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
