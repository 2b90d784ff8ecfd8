"""The device of a forecast: here, in the table of datasheets, or imagined."""

import math
import re
from dataclasses import replace

from Utils.base.errors import UserError
from Utils.base.units import GIB, MIB
from Utils.device import datasheets, device_choice, measured_ceilings
from Utils.device.cuda import CUDA, ImaginedGPU
from Utils.device.datasheets import Datasheet
from Utils.forecast.recording_processes import in_processes

UNITS = {"": 1, "mb": 10**6, "mib": MIB, "gb": 10**9, "gib": GIB}


def memory_size(text):
    """Return the bytes of "10GiB", "24 GB" or "8e9". Raises UserError."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in UNITS or not float(match[1]):
        remedy = "give it as 10GiB (2^30), 10GB (10^9) or 1e10, in bytes"
        raise UserError(f"--memory {text}: not a size", remedy)
    return int(float(match[1]) * UNITS[match[2]])


def device_of(name, memory=None):
    """Return the device to forecast for: one of the table of datasheets, a GPU of so many bytes, or
    as `device_choice` knows it. Raises UserError where there is no such device here.

    This process asks no GPU for anything: it could then fork no more.
    """
    if not re.match("auto$|cpu$|mps$|cuda", name):  # it names a row of the table
        entry = datasheets.find(name)
        size = memory or entry.memory_bytes
        return ImaginedGPU(entry.names[0], size, entry.capability, entry.architecture)
    if memory and name.startswith("cuda"):
        return ImaginedGPU("an imagined GPU", memory)
    gpu = in_processes(_gpu_here, [(name,)])[0]
    if isinstance(gpu, UserError):
        raise UserError(gpu.message, "MEMORY=80GiB imagines one" if "cuda" in name else gpu.remedy)
    return gpu or device_choice.choose(name)


def _gpu_here(name):
    """Return the facts of a GPU, None for another device, or the UserError for a missing one."""
    try:
        device = device_choice.choose(name)
    except UserError as error:
        return error
    if isinstance(device, CUDA):
        facts = device.name, device.memory_bytes, device.capability, device.architecture
        return ImaginedGPU(*facts)


def datasheet_of(device):
    """Return the Datasheet that times are forecast from: ceilings measured here in place of the
    table's, where there are some; None without both."""
    ceilings = measured_ceilings.ceilings(device)
    listed = datasheets.named(device.name)
    return measured_entry(device, listed, ceilings) if ceilings else listed


def measured_entry(device, listed, ceilings):
    """Return a Datasheet of a device with its measured ceilings. listed: its row, or None."""
    rates = ceilings["matmul_tflops"] | ceilings["emulated_tflops"]
    columns = {key: rates.get(key, 0.0) for key in ("float32", "tf32", "bfloat16", "float16")}
    columns |= {"bandwidth": ceilings["bandwidth_gb_s"], "process": datasheets.MEASURED}
    if listed:
        return replace(listed, **columns)
    columns |= {"tf32": 0.0, "memory": device.memory_bytes / datasheets.SOLD, "sms": 1, "l2": 1}
    columns |= {"watts": math.inf, "year": 0, "capability": (0, 0), "source": "make ceilings"}
    return Datasheet("here", (device.name,), **columns)
