"""GPUs to forecast for: from the table of datasheets, or from ceilings measured here.

It imports no torch, as pages take their names from it.
"""

import math

from Utils.base.errors import unknown
from Utils.device import datasheets

# Datasheet.process if peaks and bandwidth are ceilings measured here
MEASURED = "measured"
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


def datasheet_of(device, ceilings):
    """Return the Datasheet of a device, or None if the table lacks it and nothing was measured.

    ceilings: measured here, or None. They are used only for a device that the table lacks, as a
    step's products are faster than its ceilings (docs/METHOD.md).
    """
    listed = datasheets.datasheet_for(device.name)
    if listed or not ceilings:
        return listed

    rates = ceilings["matmul_tflops"] | ceilings["emulated_tflops"]
    return datasheets.Datasheet(
        "here",
        (device.name,),
        float32=rates.get("float32", 0.0),
        bfloat16=rates.get("bfloat16", 0.0),
        float16=rates.get("float16", 0.0),
        tf32=0.0,
        bandwidth=ceilings["bandwidth_gb_s"],
        memory=device.memory_bytes / datasheets.SOLD,
        process=MEASURED,
        sms=1,
        l2=1,
        watts=math.inf,
        capability=(0, 0),
        source="ceilings measured here",
    )


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
