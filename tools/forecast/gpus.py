"""GPUs that need not be here: by the table of datasheets, or by ceilings measured here."""

import math
import os
import re
from difflib import get_close_matches

import torch

from Utils.base.errors import UserError
from Utils.device import datasheets
from Utils.device.cuda import CUDA

MEASURED = "measured"  # in place of a process: peaks and bandwidth are ceilings measured here


class ImaginedGPU(CUDA):
    """A GPU known by its facts alone, for forecasts. Its tensors are on the CPU."""

    multiprocessors = None

    def __init__(self, name, memory_bytes, capability=(9, 0), architecture=""):
        self.torch_device = torch.device("cpu")
        self.name = name
        self.memory_bytes = memory_bytes
        self.capability = capability
        self.architecture = architecture


def workspace_bytes(device):
    """Return the bytes that cuBLAS works in: once for each thread, forward and backward, as in
    torch's CublasHandlePool.cpp.
    """
    if not isinstance(device, CUDA) or device.architecture.startswith("gfx"):
        return 0
    default = ":4096:8" if device.capability >= (9, 0) else ":4096:2:16:8"  # :KiB:number
    parts = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", default))
    return 2 * 1024 * sum(int(size) * int(count) for size, count in parts)


def of_device(device, ceilings):
    """Return the Datasheet of a device, None where nothing is known of it. ceilings: measured here,
    or None; for a device that the table lacks, as a step's products are faster (docs/METHOD.md).
    """
    listed = datasheets.named(device.name)
    if listed or not ceilings:
        return listed
    rates = ceilings["matmul_tflops"] | ceilings["emulated_tflops"]
    columns = {key: rates.get(key, 0.0) for key in ("float32", "bfloat16", "float16")}
    columns |= {"bandwidth": ceilings["bandwidth_gb_s"], "process": MEASURED}
    columns |= {"tf32": 0.0, "memory": device.memory_bytes / datasheets.SOLD, "sms": 1, "l2": 1}
    columns |= {"watts": math.inf, "capability": (0, 0), "source": "make ceilings"}
    return datasheets.Datasheet("here", (device.name,), **columns)


def find(key):
    """Return the Datasheet of that key. Raises UserError with the nearest keys."""
    sheets = datasheets.datasheets()
    normal_key = key.lower().replace("_", "-").replace(" ", "")
    if normal_key in sheets:
        return sheets[normal_key]
    near = get_close_matches(normal_key, sheets, n=4, cutoff=0.3)
    remedy = f"nearest: {', '.join(near)}" if near else f"choose {', '.join(sheets)}"
    raise UserError(f"no device {key!r} in the table", remedy)
