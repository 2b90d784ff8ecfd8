"""Names and order of the switches on a user's script.

A script with switches has their names in this order: `train+tensorFloat32+brainFloat16`. Only this
package makes such names; nothing parses them, as rows have the columns suite, parent and change.
"""

# Each is added to those before it that had an effect. A new switch is added here.
LADDER = (
    "tensorFloat32",
    "brainFloat16",
    "float16",
    "torch_compile",
    "flash_attention",
    "fused_optimizer",
)
# Each is added to the last script of the ladder.
MORE = (
    "cuda_graphs",
    "gradient_checkpointing",
    "channels_last",
    "cudnn_benchmark",
)
ORDER = LADDER + MORE
# The technique that a switch replaces.
REPLACES = {"cuda_graphs": "torch_compile"}


def name_of(base, techniques):
    """Return the name of the script `base` with switches for these techniques."""
    return "+".join([base, *sorted(techniques, key=ORDER.index)])
