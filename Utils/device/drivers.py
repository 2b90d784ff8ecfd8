"""GPUs as torch and the driver see them, to explain why torch sees none."""

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
