"""What torch and the driver say of GPUs, seen or not."""

from pathlib import Path

import torch

from Utils.base.errors import first_line
from Utils.device.device_choice import has_cuda
from Utils.device.nvml import Nvml

KERNEL_MODULE = "its kernel module"  # in place of a version, where NVML does not answer


def visible_gpus():
    """Return (number of CUDA devices that torch sees, its error where there is none)."""
    if has_cuda():
        return torch.cuda.device_count(), ""
    try:
        torch.cuda.init()
        return 0, "torch sees no CUDA device"
    except Exception as error:
        return 0, first_line(error)


def try_out(device):
    """Multiply two small matrices on a device. Return the error in one line, or ""."""
    try:
        ones = torch.ones(64, 64, device=device.torch_device)
        return "" if (ones @ ones).sum().item() == 64**3 else "it computes a wrong product"
    except Exception as error:  # drivers cause errors of many types
        return first_line(error)


def gpus_of_driver(module=None, kernel="/proc/driver/nvidia/version"):
    """Return the name of this machine's first NVIDIA GPU, whether torch sees it or not, the
    driver's version and the newest CUDA that it supports; None for what is unknown.
    """
    nvml = Nvml(None, module)
    name = nvml.call("DeviceGetName", nvml.call("DeviceGetHandleByIndex", 0))
    if not name:
        return None, KERNEL_MODULE if Path(kernel).exists() else None, None
    number = nvml.call("SystemGetCudaDriverVersion")
    cuda = number and (number // 1000, number % 1000 // 10)
    return name, nvml.call("SystemGetDriverVersion"), cuda
