"""GPUs as torch and the driver see them, to explain why torch sees none."""

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from Utils.base import errors
from Utils.device.nvml import Nvml


@dataclass(frozen=True)
class DriverView:
    """The NVIDIA GPUs of a machine, whether torch sees them or not.

    source: "NVML", "kernel" (the module is loaded, but NVML does not answer), "bus" (no driver) or
    "" (no GPU). cuda: newest version that the driver supports.
    """

    source: str = ""
    gpu: str = "an NVIDIA GPU"
    driver: str | None = None
    cuda: tuple | None = None


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
    moves = ctypes.c_int()
    device = ctypes.c_int()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL(library)
        errors_of_calls = (
            driver.cuInit(0),
            driver.cuDeviceGet(ctypes.byref(device), index),
            driver.cuDeviceGetAttribute(ctypes.byref(moves), concurrent_managed_access, device),
        )
        if not any(errors_of_calls):
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
    """Return the DriverView of this machine."""
    driver = Nvml(None, nvml)
    if name := driver.first_name():
        return DriverView("NVML", name, driver.driver(), driver.cuda())
    if Path(kernel, "version").exists():
        return DriverView("kernel", driver="its kernel module")
    for device in Path(bus).glob("*"):
        with suppress(OSError):
            vendor = (device / "vendor").read_text()
            display = (device / "class").read_text().startswith("0x03")
            if display and vendor.startswith("0x10de"):
                return DriverView("bus")
    return DriverView()
