"""Names and order of the switches on a user's script, for what makes a ladder of them.

A script with switches is named after them in this order: `train+tensorFloat32+brainFloat16`. Other
code reads the columns suite, parent and change, and takes no name apart.
"""

from Utils.results import old_rows

# Each is enabled on those before it that took effect. Names in old files have the same order; a
# switch that is added is added here.
LADDER = old_rows.RUNGS
# Each is enabled on the end of the ladder.
MORE = (
    "cuda_graphs",
    "gradient_checkpointing",
    "prefetching_loader",
    "channels_last",
    "cudnn_benchmark",
)
ORDER = LADDER + MORE
# Techniques that a switch takes the place of.
REPLACES = old_rows.REPLACES


def name_of(base, techniques):
    """Return the name of a script with those techniques."""
    return "+".join([base, *sorted(techniques, key=ORDER.index)])
