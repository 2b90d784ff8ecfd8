"""GPUs as torch and the driver see them, to explain why torch sees none."""

import ctypes
import re
from contextlib import suppress
from pathlib import Path

import torch

from Utils.base import errors
from Utils.device.nvml import Nvml


def torch_toolkit():
    """Return the toolkit of torch's build: "CUDA 13.0", "ROCm 7.0", or "" for CPUs alone."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else ""


def moves_pages(index, library="libcuda.so.1"):
    """Return whether pages of managed memory move to an NVIDIA GPU on demand; None if unknown.

    They do not on Windows and in WSL2, where managed memory is copied as a whole.
    """
    concurrent_managed_access = 89  # CUdevice_attribute of cuda.h; torch does not tell it
    moves, device = ctypes.c_int(), ctypes.c_int()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL(library)
        asked = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
        attribute = concurrent_managed_access, device
        if not asked and not driver.cuDeviceGetAttribute(ctypes.byref(moves), *attribute):
            return bool(moves.value)
    return None


def gpus_of_torch(cuda=torch.cuda):
    """Return (number of CUDA devices that torch sees, its error where there is none)."""
    if count := cuda.device_count() if cuda.is_available() else 0:
        return count, ""
    try:
        cuda.init()
        return 0, "torch sees no CUDA device"
    except Exception as error:
        return 0, errors.first_line(error)


def gpus_of_driver(nvml=None, kernel="/proc/driver/nvidia", bus="/sys/bus/pci/devices"):
    """Return the NVIDIA GPUs of this machine, whether torch sees them or not: a dict.

    source: "NVML", "kernel" (the module is loaded, but NVML does not answer), "bus" (no driver) or
    "" (no GPU); gpus: known names; driver: version or None; cuda: newest version that the driver
    supports, or None.
    """
    driver = Nvml(None, nvml)
    known = {"driver": driver.driver(), "cuda": driver.cuda(), "gpus": driver.names()}
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
