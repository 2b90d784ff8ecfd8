"""Batch size and sequence length at which the baseline fits the device."""

from Utils.base.gpt2_sizes import VOCABULARY
from Utils.device.cpu import CPU

OVERHEAD_BYTES = 2**30  # the context, loaded kernels and workspaces of libraries
FRAGMENTED = 0.05  # fraction that torch's allocator loses


def usable_bytes(memory_bytes):
    """Return the bytes of a device's memory that tensors can use."""
    return int((memory_bytes - OVERHEAD_BYTES) * (1 - FRAGMENTED))


def baseline_bytes(config, parameters, batch_size, seq_len):
    """Estimate the peak of the baseline on a GPU, in bytes; `make forecast` is more precise.

    In float32 it is at the start of the backward (weights, two moments, activations: 16 of width
    n_embd and the scores per block, four of the logits' size) or in the update, without them.
    """
    per_token = config.n_layer * (16 * config.n_embd + config.n_head * seq_len) + 4 * VOCABULARY
    return max(12 * parameters + 4 * batch_size * seq_len * per_token, 20 * parameters)


def auto_shape(device, config, parameters, batch_size=None, seq_len=None, ranks=1):
    """Return (batch_size, seq_len) at which the baseline fits the device, for every script.

    batch_size, seq_len: where fixed. ranks: share the batch; each takes as much as it would alone.
    """
    if isinstance(device, CPU):
        return batch_size or ranks, seq_len or 64
    room = usable_bytes(device.memory_bytes)
    lengths = [seq_len] if seq_len else [1024, 512, 256, 128, 64]
    sizes_of_a_rank = [batch_size // ranks] if batch_size else [16, 8, 4, 2, 1]
    for T in lengths:
        for B in sizes_of_a_rank:
            if baseline_bytes(config, parameters, B, T) <= room:
                return B * ranks, T
    return batch_size or ranks, seq_len or 64
