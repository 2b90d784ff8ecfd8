"""Checks of the needs of a technique, declared after `Needs:` in its docstring."""

import importlib.util
import os
import shutil
import sys

import torch

from Utils.base.errors import Unsupported, UserError
from Utils.device import drivers
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS

INDUCTOR_SMS = 68  # as in torch/_inductor/utils.py, is_big_gpu


class WithoutEffect(str):
    """A note on a need that this device ignores: the technique has no effect here."""


class Emulated(str):
    """A note on a need that this device emulates, slowly."""


def check(need, device):
    """Return the limit of a technique with this need on this device, in words.

    need: "tf32", "bfloat16" (both: computed natively), "compile" (Inductor's tool chain),
        "autotuning" (of matrix products), "triton" (custom kernels), "float16", "float8" (both: on
        tensor cores), "managed_memory" (whose pages move between GPU and host), "pinned_memory",
        "cudnn_attention", "cuda_graphs", "distributed" (processes that form a group), "nccl",
        "bitsandbytes", or "package NAME".
    Returns "" without a limit, else a str, WithoutEffect or Emulated.
    Raises Unsupported, with the reason, and UserError for an unknown need.
    """
    if need in CHECKS:
        return CHECKS[need](device) or ""
    kind, _, name = need.partition(" ")
    if kind != "package" or not name.isidentifier():
        known = ", ".join([*CHECKS, "text", "package NAME", "batch multiple of N"])
        raise UserError(f"Needs: {need!r} is unknown", f"choose from {known}")
    if importlib.util.find_spec(name) is None:
        raise Unsupported(f"needs {name} (pip install {name})")
    return ""


def _is_amd(device):
    """Return whether a CUDA is AMD's. A forecast asks for GPUs that this torch is not built for."""
    return device.architecture.startswith("gfx")


def _check_tf32(device):
    if isinstance(device, CUDA) and not _is_amd(device) and device.capability >= (8, 0):
        return None
    if isinstance(device, CPU) and _cpu_has("amx_fp16"):
        return None
    if isinstance(device, CUDA) and device.architecture.startswith(("gfx94", "gfx95")):
        return None  # AMD's matrix cores support it from the MI300 on
    return WithoutEffect("TF32: no effect expected on this device")


def _check_bfloat16(device):
    # torch.cuda.is_bf16_supported() is also True for emulation, so check the hardware.
    if isinstance(device, CUDA) and not _is_amd(device):
        return _need_capability(device, (8, 0), "native bfloat16")
    if isinstance(device, CPU) and not _cpu_has("bf16"):
        return Emulated("bfloat16: emulated on this device")
    return None


def _check_compile(device):
    if isinstance(device, CUDA):
        if not _is_amd(device):
            _need_capability(device, (7, 0), "torch.compile")
        _check_triton(device)
    elif isinstance(device, CPU) and compiler("C++") is None:
        raise Unsupported("torch.compile needs a C++ compiler on a CPU (g++, or CXX=another)")


def _check_autotuning(device):
    sms = device.multiprocessors if isinstance(device, CUDA) and not _is_amd(device) else None
    if sms and sms < INDUCTOR_SMS:
        return f"max-autotune tunes no matrix products on {sms} SMs; it needs {INDUCTOR_SMS}"


def _check_triton(device):
    if not isinstance(device, CUDA):
        raise Unsupported("Triton kernels need an NVIDIA or AMD GPU")
    if importlib.util.find_spec("triton") is None:
        raise Unsupported("needs triton (pip install triton)")
    if compiler("C") is None:
        raise Unsupported("triton needs a C compiler (gcc or clang)")


def compiler(language):
    """Return the path of the compiler of Inductor ("C++") or Triton ("C"), or None."""
    if language == "C++":
        names = [os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")]
    else:
        names = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    return next(filter(None, map(shutil.which, names)), None)


def _need_capability(device, minimum, feature):
    if device.capability < minimum:
        have, need = ("{}.{}".format(*version) for version in (device.capability, minimum))
        raise Unsupported(f"{feature} needs compute capability {need}; {device.name} has {have}")


def _check_bitsandbytes(device):
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Unsupported("needs bitsandbytes (pip install bitsandbytes)")
    if isinstance(device, MPS):
        raise Unsupported("bitsandbytes has no 8-bit optimizer for Apple GPUs")


def _check_cudnn_attention(device):
    # As in torch's sdp_utils.cpp. GPT-2's shapes meet its other conditions.
    if not isinstance(device, CUDA) or _is_amd(device):
        raise Unsupported("cuDNN's attention needs an NVIDIA GPU")
    _need_capability(device, (8, 0), "cuDNN's attention")
    if (torch.backends.cudnn.version() or 0) < 90_000:
        raise Unsupported("cuDNN's attention needs cuDNN 9")
    if device.capability < (9, 0):
        return "cuDNN's attention: made for compute capability 9.0 and newer"


def _check_cuda_graphs(device):
    if not isinstance(device, CUDA):
        return WithoutEffect("CUDA graphs: no effect on this device")


def _check_float16(device):
    if isinstance(device, CPU):
        raise Unsupported("float16 needs a GPU; on a CPU bfloat16 is the 16-bit type")
    if isinstance(device, CUDA) and not _is_amd(device):
        _need_capability(device, (7, 0), "float16 on tensor cores")


def _check_float8(device):
    if not isinstance(device, CUDA):
        raise Unsupported("float8 products need an NVIDIA or AMD GPU")
    if not _is_amd(device):
        _need_capability(device, (8, 9), "float8")
    elif not device.architecture.startswith(("gfx94", "gfx95")):
        raise Unsupported(f"float8 needs an MI300 or newer, not {device.name}")


def _check_managed_memory(device):
    if not isinstance(device, CUDA) or drivers.moves_pages(device.torch_device.index or 0) is False:
        return WithoutEffect("not paged on this device")


def _check_distributed(device):
    if not torch.distributed.is_available():
        raise Unsupported("this build of torch has no torch.distributed")
    if isinstance(device, MPS):
        raise Unsupported("torch.distributed has no backend for Apple GPUs; use DEVICE=cpu")


def _check_nccl(device):
    if not isinstance(device, CUDA) or not torch.distributed.is_nccl_available():
        raise Unsupported("needs NCCL, so an NVIDIA or AMD GPU; gloo has no bfloat16 hook")


def _check_pinned_memory(device):
    if not isinstance(device, CUDA):
        raise Unsupported("pinned memory is for copies to an NVIDIA or AMD GPU")


CHECKS = {
    "tf32": _check_tf32,
    "bfloat16": _check_bfloat16,
    "compile": _check_compile,
    "autotuning": _check_autotuning,
    "triton": _check_triton,
    "bitsandbytes": _check_bitsandbytes,
    "cudnn_attention": _check_cudnn_attention,
    "cuda_graphs": _check_cuda_graphs,
    "float16": _check_float16,
    "float8": _check_float8,
    "managed_memory": _check_managed_memory,
    "pinned_memory": _check_pinned_memory,
    "distributed": _check_distributed,
    "nccl": _check_nccl,
}


def _cpu_has(feature):
    """Return whether the CPU has an instruction set whose name contains `feature`."""
    if hasattr(torch.cpu, "get_capabilities"):
        return any(
            on is True and feature in name for name, on in torch.cpu.get_capabilities().items()
        )
    flags = {"bf16": "_is_avx512_bf16_supported", "amx_fp16": "_is_amx_fp16_supported"}
    return getattr(torch.cpu, flags[feature], lambda: False)()
