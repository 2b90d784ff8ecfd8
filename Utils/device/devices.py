"""The device of a run, chosen by name.

The rest of the code asks one object, a CPU, CUDA or MPS, for the time and the memory; nothing else
outside of this folder names torch.cuda. The clock is read at step boundaries only:

- On a GPU a boundary is an event in the stream. Recording one does not wait for the GPU, so the
  loop runs as it would without us; the times are read after the last step, behind the one and
  only synchronization.
- On a CPU work is finished when the call returns, so a boundary is `time.perf_counter()`.

What else goes on is read outside the timed steps: `other_processes` when the device is chosen,
`counters()` before the first timed step and after the last, `readings()` after the last.
"""

import torch

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.device import cgroup
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS

AUTO = "use auto for the best device there is"


def choose(wanted, local_rank=0, local_world_size=1):
    """The device of that name: auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:1, mps.

    local_rank, local_world_size: which of how many processes on this machine asks. Of several each
    takes a GPU of its own.
    Raises UserError where it is not there.
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
            raise UserError(f"--device {wanted}: each rank takes a GPU of its own; use cuda")
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
        return CUDA(torch.device("cuda", device.index or 0))
    # Whatever compiles would log that there is a toolkit and no GPU, which is no news of a CPU run.
    return MPS(device) if device.type == "mps" else CPU()


def gpus(count):
    return f"{count} GPU{'s' * (count != 1)}"


def available(wanted):
    """How many processes of a run this machine has room for, and of what it has so many, in words:
    one a GPU, or one a core that this process may use. wanted: as for `choose`."""
    device = choose(wanted)
    if isinstance(device, CUDA):
        count = 1 if ":" in wanted else torch.cuda.device_count()
        return count, gpus(count)
    if isinstance(device, MPS):
        return 1, gpus(1)
    cores = max(1, int(cgroup.usable_cpus()))
    return cores, f"{cores} core{'s' * (cores != 1)}"


def try_out(device):
    """Return what goes wrong with a first small product on a device, in one line, or ""."""
    try:
        ones = torch.ones(64, 64, device=device.torch_device)
        return "" if (ones @ ones).sum().item() == 64**3 else "it computes a wrong product"
    except Exception as error:  # whatever torch makes of a driver's answer
        return errors.first_line(error)


def is_out_of_memory(error):
    """Return whether an exception says that memory ran out, on whichever device."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    words += ("cublas_status_alloc_failed",)  # a GPU so full that cuBLAS has no workspace
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
