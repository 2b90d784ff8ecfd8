"""GPUs as torch and the driver see them, for when torch sees none."""

import re
from contextlib import suppress
from pathlib import Path

import torch

from Utils.base import errors
from Utils.device.nvml import Nvml


def torch_toolkit():
    """The toolkit that torch is built for: "CUDA 13.0", "ROCm 7.0", or "" for CPUs alone."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else ""


def gpus_of_torch(cuda=torch.cuda):
    """(how many CUDA devices torch sees, what it says where there is none)."""
    if count := cuda.device_count() if cuda.is_available() else 0:
        return count, ""
    try:
        cuda.init()
        return 0, "torch sees no CUDA device"
    except Exception as error:
        return 0, errors.first_line(error)


def gpus_of_driver(nvml=None, kernel="/proc/driver/nvidia", bus="/sys/bus/pci/devices"):
    """The NVIDIA GPUs that are there whatever torch sees, and who says so: a dict.

    source: "NVML", "kernel" (its module is loaded, and NVML does not answer), "bus" (there is no
    driver) or "" (there is no GPU); gpus: names, as far as they are known; driver and cuda: its
    version and the newest CUDA that it runs, or None.
    """
    asked = Nvml(None, nvml)
    known = {"driver": asked.driver(), "cuda": asked.cuda(), "gpus": asked.names()}
    if known["gpus"]:
        return {"source": "NVML", **known}
    for file in Path(kernel).glob("gpus/*/information"):
        with suppress(OSError):
            known["gpus"] += re.findall(r"^Model:\s*(.*\S)", file.read_text(), re.MULTILINE)
    with suppress(OSError):
        version = re.search(r"\b(\d{3,}\.[\d.]*\d)", Path(kernel, "version").read_text())
        return {"source": "kernel", **known, "driver": version and version[1]}
    for device in Path(bus).glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text() for name in ("vendor", "class"))
            if vendor.startswith("0x10de") and kind.startswith("0x03"):  # a display controller
                return {"source": "bus", **known}
    return {"source": "", **known}
