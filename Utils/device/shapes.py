"""A batch size and sequence length at which the baseline fits the device."""

from Utils.base.sizes import VOCABULARY
from Utils.device.cpu import CPU

# Of a device's memory, what tensors cannot take: the context, loaded kernels and the libraries'
# workspaces, and of the rest what torch's allocator holds in pieces too small for the next tensor.
OVERHEAD_BYTES = 2**30
FRAGMENTED = 0.05


def usable_bytes(memory_bytes):
    """The bytes of a device's memory that tensors can take."""
    return int((memory_bytes - OVERHEAD_BYTES) * (1 - FRAGMENTED))


def baseline_bytes(config, parameters, batch_size, seq_len):
    """About the peak of the baseline on a GPU, in bytes; `make forecast` works it out in full.

    In float32, either as the backward begins, with weights and AdamW's two moments beside the
    activations (16 of width n_embd a block and the scores; four of the logits' size), or in the
    update, with gradients and as much again, but no activations.
    """
    per_token = config.n_layer * (16 * config.n_embd + config.n_head * seq_len) + 4 * VOCABULARY
    return max(12 * parameters + 4 * batch_size * seq_len * per_token, 20 * parameters)


def auto_shape(device, config, parameters, batch_size=None, seq_len=None, ranks=1):
    """(batch_size, seq_len) at which the baseline fits the device, the same for every script. With
    several ranks the batch is theirs together: each takes what it would take alone.

    config, parameters: the model's shape and its number of parameters.
    batch_size, seq_len: given where one of the two is fixed.
    """
    if isinstance(device, CPU):
        return batch_size or ranks, seq_len or 64
    room = usable_bytes(device.memory_bytes)
    for T in [seq_len] if seq_len else [1024, 512, 256, 128, 64]:
        for B in [batch_size // ranks] if batch_size else [16, 8, 4, 2, 1]:
            if baseline_bytes(config, parameters, B, T) <= room:
                return B * ranks, T
    return batch_size or ranks, seq_len or 64
