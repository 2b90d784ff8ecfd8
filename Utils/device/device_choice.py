"""The device of a run, chosen by name, and the shape of its batches.

One object, a CPU, CUDA or MPS, measures time and memory. Its clock is read at step boundaries only:
`mark()` returns a boundary, `elapsed_ms(marks)` the times between boundaries. Its state is read
outside the timed steps: `other_processes` when the device is chosen, `counters()` before the first
timed step and after the last, `readings()` after the last.
"""

from contextlib import suppress

import torch

from Utils.base.command_line import spelled
from Utils.base.errors import UserError
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.base.text import plural
from Utils.device.cpu import CPU, usable_cpus
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS

AUTO = "use auto for the best device available"
OVERHEAD_BYTES = 2**30  # the context, loaded kernels and workspaces of libraries
FRAGMENTED = 0.05  # fraction that torch's allocator loses


def choose(name, local_rank=0, local_world_size=1, partners=()):
    """Return the device of a name: auto (CUDA, else MPS, else CPU), cpu, cuda, cuda:1, mps.

    local_rank, local_world_size: the rank of this process on this machine, and their number there.
    Each rank takes a separate GPU. partners: process ids of runs that take turns with this one.
    Raises UserError if there is no such device.
    """
    if name == "auto":
        name = "mps" if torch.backends.mps.is_available() else "cpu"
        name = "cuda" if has_cuda() else name

    setting = spelled("device", name)
    sees = f"torch {torch.__version__} sees"

    # Compare the names, as torch takes cuda:256 for cuda:0.
    device = None
    with suppress(RuntimeError):
        device = torch.device(name)
    if str(device) != name or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"{setting}: no such device", "choose auto, cpu, cuda, cuda:N or mps")

    if device.type == "cpu":
        return CPU()

    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise UserError(f"{setting}: {sees} no Apple GPU", AUTO)
        return MPS(device)

    # Several ranks take the GPUs in order.
    count = torch.cuda.device_count()
    index = device.index or 0
    if local_world_size > 1:
        if device.index is not None:
            raise UserError(f"{setting}: each rank takes a GPU of its own", "use cuda")
        if count < local_world_size:
            raise UserError(f"{local_world_size} ranks, and torch sees {plural(count, 'GPU')}")
        index = local_rank

    if index >= count:
        raise UserError(f"{setting}: {sees} {count} CUDA devices", AUTO)
    return CUDA(torch.device("cuda", index), partners=partners)


def has_cuda():
    return torch.cuda.is_available()


def available(name):
    """Return the number of ranks that fit this machine, and the GPUs or cores for them in words.

    One rank per GPU, or per usable core. name: as for `choose`, which may raise UserError.
    """
    device = choose(name)
    if isinstance(device, CPU):
        cores = max(1, int(usable_cpus()))
        return cores, plural(cores, "core")
    count = torch.cuda.device_count() if isinstance(device, CUDA) and ":" not in name else 1
    return count, plural(count, "GPU")


def is_out_of_memory(error):
    """Return whether an exception means out of memory, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False

    phrases = [
        "out of memory",
        "can't allocate memory",
        "not enough memory",
        "cublas_status_alloc_failed",  # no memory for the workspace of cuBLAS
    ]
    return any(phrase in str(error).lower() for phrase in phrases)


def usable_bytes(memory_bytes):
    """Return the bytes of a device's memory that tensors can use."""
    return int((memory_bytes - OVERHEAD_BYTES) * (1 - FRAGMENTED))


def baseline_bytes(config, batch_size, seq_len):
    """Estimate the peak of the baseline on a GPU, in bytes; `make forecast` is more precise.

    In float32 the peak is at the start of the backward pass, or in the update. The backward pass
    needs weights, two moments and activations: per block 16 of width n_embd and the scores, and
    four of the logits' size. The update needs no activations.
    """
    parameters = config.parameters()
    per_token = config.n_layer * (16 * config.n_embd + config.n_head * seq_len) + 4 * VOCABULARY
    return max(12 * parameters + 4 * batch_size * seq_len * per_token, 20 * parameters)


def auto_shape(device, config, batch_size="auto", seq_len="auto", ranks=1):
    """Return (batch_size, seq_len) at which the baseline fits the device, for every script.

    ranks: the number of processes that share the batch; each takes as much as it would alone. A CPU
    takes the smallest shape.
    """
    lengths = [1024, 512, 256, 128, 64] if seq_len == "auto" else [seq_len]
    batches = [n * ranks for n in (16, 8, 4, 2, 1)] if batch_size == "auto" else [batch_size]
    limit_bytes = 0 if isinstance(device, CPU) else usable_bytes(device.memory_bytes)

    for T in lengths:
        for batch in batches:
            if baseline_bytes(config, batch // ranks, T) <= limit_bytes:
                return batch, T
    return batches[-1], lengths[-1]
