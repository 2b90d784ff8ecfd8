"""Names and order of the switches on a user's script, for what makes a ladder of them.

A script with switches is named after them in this order: `train+tensorFloat32+brainFloat16`. Other
code reads the columns suite, parent and change, and takes no name apart.
"""

# Each is thrown on those before it that took effect.
LADDER = (
    "tensorFloat32",
    "brainFloat16",
    "float16",
    "torch_compile",
    "flash_attention",
    "fused_optimizer",
    "8bit_optimizer",
)
# Each is thrown on the end of the ladder.
MORE = (
    "cuda_graphs",
    "gradient_checkpointing",
    "prefetching_loader",
    "channels_last",
    "cudnn_benchmark",
)
ORDER = LADDER + MORE
# Techniques that a switch takes the place of.
REPLACES = {
    "float16": {"brainFloat16"},
    "8bit_optimizer": {"fused_optimizer"},
    "cuda_graphs": {"torch_compile"},
}


def name_of(base, techniques):
    """Return the name of a script with those techniques."""
    return "+".join([base, *sorted(techniques, key=ORDER.index)])
