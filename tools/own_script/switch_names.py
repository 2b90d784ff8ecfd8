"""Names and order of the switches on a user's script.

A script with switches has their names in this order: `train+tensorFloat32+brainFloat16`. Only this
package makes such names; nothing parses them, as rows have the columns suite, parent and change.
"""

from Utils.results import old_rows

# Each is added to those before it that had an effect. Names in old files have the same order; a
# new switch is added here.
LADDER = old_rows.RUNGS
# Each is added to the last script of the ladder.
MORE = (
    "cuda_graphs",
    "gradient_checkpointing",
    "prefetching_loader",
    "channels_last",
    "cudnn_benchmark",
)
ORDER = LADDER + MORE
# Techniques by the switch that replaces them.
REPLACES = old_rows.REPLACES


def name_of(base, techniques):
    """Return the name of the script `base` with switches for these techniques."""
    return "+".join([base, *sorted(techniques, key=ORDER.index)])
