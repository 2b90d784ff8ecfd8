"""GPUs as torch sees them, and as the driver does."""

from pathlib import Path

import torch

from Utils.base.errors import first_line
from Utils.device.device_choice import has_cuda
from Utils.device.nvml import Nvml

KERNEL_MODULE = "its kernel module"  # instead of a version, if NVML does not answer


def visible_gpus():
    """Return (number of CUDA devices that torch sees, its error if it sees none)."""
    if has_cuda():
        return torch.cuda.device_count(), ""
    try:
        torch.cuda.init()
        return 0, "torch sees no CUDA device"
    except Exception as error:
        return 0, first_line(error)


def try_out(device):
    """Multiply two small matrices on a device. Return its error in one line, or ""."""
    try:
        ones = torch.ones(64, 64, device=device.torch_device)
        is_right = (ones @ ones).sum().item() == 64**3
        return "" if is_right else "wrong result of a matrix product"
    except Exception as error:  # drivers cause errors of many types
        return first_line(error)


def gpus_of_driver(module=None, kernel="/proc/driver/nvidia/version"):
    """Return (name of the first NVIDIA GPU, driver's version, newest CUDA that it supports).

    torch need not see that GPU. CUDA's version is a pair. Unknown values are None.
    """
    nvml = Nvml(None, module)
    name = nvml.call("DeviceGetName", nvml.call("DeviceGetHandleByIndex", 0))
    if not name:
        return None, KERNEL_MODULE if Path(kernel).exists() else None, None

    number = nvml.call("SystemGetCudaDriverVersion")  # 13020 is 13.2
    cuda = (number // 1000, number % 1000 // 10) if number else None
    return name, nvml.call("SystemGetDriverVersion"), cuda
