"""GPUs of the table of datasheets, to forecast for.

It imports no torch, as pages take their names from it.
"""

from Utils.base.errors import unknown
from Utils.device import datasheets

# NVIDIA's generations by capability
GENERATIONS = {
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 6): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (12, 0): "Blackwell",
}


def generation(entry):
    """Return the generation of a Datasheet: NVIDIA's name, AMD's architecture, "" if unknown."""
    return entry.architecture or GENERATIONS.get(entry.capability, "")


def datasheet_by_key(key):
    """Return the Datasheet of a key. Raises UserError."""
    sheets = datasheets.datasheets()
    normal_key = key.lower().replace("_", "-").replace(" ", "")
    if normal_key in sheets:
        return sheets[normal_key]
    raise unknown(f"no device {key!r} in the table", normal_key, sheets)
