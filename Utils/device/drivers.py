"""GPUs as torch and the driver see them, to explain why torch sees none."""

from dataclasses import dataclass
from pathlib import Path

import torch

from Utils.base import errors
from Utils.device.nvml import Nvml

KERNEL_MODULE = "its kernel module"  # in place of a version, where NVML does not answer


@dataclass(frozen=True)
class DriverView:
    """NVIDIA's driver, and its first GPU. cuda: newest version that it supports."""

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


def gpus_of_driver(nvml=None, kernel="/proc/driver/nvidia/version"):
    """Return the DriverView of this machine, whether torch sees its GPUs or not."""
    driver = Nvml(None, nvml)
    if name := driver.first_name():
        return DriverView(name, driver.driver(), driver.cuda())
    return DriverView(driver=KERNEL_MODULE) if Path(kernel).exists() else DriverView()
