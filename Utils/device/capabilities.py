"""Checks of the needs of a technique, declared after `Needs:` in its docstring."""

import importlib.util
import os
import platform
import re
import shutil
import sys

import torch

from Utils.base.errors import Unsupported, unknown
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.device.mps import MPS

INDUCTOR_SMS = 68  # the limit in torch/_inductor/utils.py, is_big_gpu


class WithoutEffect(str):
    """A note on a need that this device ignores: the technique has no effect here."""


class Emulated(str):
    """A note on a need that this device emulates, slowly."""


def check(need, device):
    """Return the limit of a technique with this need on this device, in words.

    The limit is "" for none, a str, WithoutEffect or Emulated. need: a key of CHECKS, "torch N" or
    "package NAME". Raises Unsupported, with the reason, and UserError for an unknown need.
    """
    if need in CHECKS:
        return CHECKS[need](device) or ""

    if need.startswith("torch "):
        is_new_enough = torch.__version__ >= need.removeprefix("torch ")
        _require(is_new_enough, f"needs {need} or newer; {torch.__version__} is installed")
        return ""

    package = need.removeprefix("package ")
    if package == need or not package.isidentifier():
        needs = [*CHECKS, "text", "package NAME", "torch N", "batch multiple of N"]
        raise unknown(f"Needs: {need!r} is unknown", need, needs)

    _require(importlib.util.find_spec(package), f"needs the package {package}")
    return ""


def has(need, device):
    """Return whether a device meets a need, natively or emulated."""
    try:
        check(need, device)
    except Unsupported:
        return False
    return True


def precision(device):
    """Return the precision of the repository's scripts on a device.

    It is bfloat16, float16 if the device has no bfloat16, or float32 if it emulates bfloat16.
    """
    if not has("bfloat16", device):
        return "float16"
    return "float32" if isinstance(check("bfloat16", device), Emulated) else "bfloat16"


def compiler(language):
    """Return the path of the compiler that Inductor ("C++") or Triton ("C") calls, or None."""
    if language == "C++":
        default = "clang++" if sys.platform == "darwin" else "g++"
        return shutil.which(os.environ.get("CXX", default))

    default = "gcc" if shutil.which("gcc") else "clang"
    return shutil.which(os.environ.get("CC", default))


def _require(condition, reason):
    if not condition:
        raise Unsupported(reason)


def _require_capability(device, minimum, feature):
    """Raise Unsupported if an NVIDIA GPU has a lower compute capability than (major, minor)."""
    if _is_nvidia(device):
        reason = "{} needs compute capability {}.{}; {} has {}.{}"
        reason = reason.format(feature, *minimum, device.name, *device.capability)
        _require(device.capability >= minimum, reason)


def _is_accelerator(device):
    return not isinstance(device, CPU)


def _is_gpu(device):
    return isinstance(device, CUDA)


def _is_nvidia(device):
    # torch's build does not tell: a forecast may ask for a GPU that this build does not support.
    return _is_gpu(device) and not device.architecture.startswith("gfx")


def _is_mi300(device):
    return _is_gpu(device) and device.architecture.startswith(("gfx94", "gfx95"))


def _cpu_has(feature):
    """Return whether the CPU has an instruction set whose name contains `feature`."""
    features = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.11 may lack it
    return any(enabled is True and feature in name for name, enabled in features.items())


def _has_bfloat16_kernels():
    """Return whether oneDNN has kernels for bfloat16 on this CPU.

    The processor's features do not tell: ONEDNN_MAX_CPU_ISA limits what oneDNN uses of them.
    """
    if not torch.backends.mkldnn.is_available():
        return _cpu_has("bf16")
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _has_tf32(device):
    if isinstance(device, CPU):
        return _cpu_has("amx_fp16")
    return _is_mi300(device) or (_is_nvidia(device) and device.capability >= (8, 0))


def _check_bfloat16(device):
    # torch.cuda.is_bf16_supported() is also True for emulation, so check the hardware.
    _require_capability(device, (8, 0), "native bfloat16")
    if isinstance(device, CPU) and not _has_bfloat16_kernels():
        return Emulated("bfloat16: emulated on this device")


def _check_float16(device):
    _require(_is_accelerator(device), "float16 needs a GPU; on a CPU bfloat16 is the 16-bit type")
    _require_capability(device, (7, 0), "float16 on tensor cores")


def _check_float8(device):
    _require(_is_gpu(device), "float8 products need an NVIDIA or AMD GPU")
    _require_capability(device, (8, 9), "float8")
    supported = _is_nvidia(device) or _is_mi300(device)
    _require(supported, f"float8 needs an MI300 or newer, not {device.name}")


def _has_ocp_float8(device):
    return not (_is_gpu(device) and device.architecture.startswith("gfx94"))


def _check_int8(device):
    _require(not isinstance(device, MPS), "8-bit integers need a CPU, or an NVIDIA or AMD GPU")
    if isinstance(device, CPU):
        # Without VNNI oneDNN adds pairs of products in 16 bits, which overflow (torch 2.13).
        largest = torch.full((64, 64), 127, dtype=torch.int8)
        is_exact = torch._int_mm(largest, largest)[0, 0] == 64 * 127**2
        _require(is_exact, "products of 8-bit integers overflow on this CPU, which lacks VNNI")
    # Turing's tensor cores multiply int8 too, but Triton 3.7 cannot compile that for 7.5.
    _require_capability(device, (8, 0), "Triton's product of int8")


def _check_flash_attention_4(device):
    # The same conditions as in torch.nn.attention, up to torch 2.14.
    _require(_is_nvidia(device), "FlashAttention-4 needs an NVIDIA GPU")
    major, minor = device.capability
    reason = f"on compute capability 9 and 10; {device.name} has {major}.{minor}"
    _require(major in (9, 10), f"torch calls FlashAttention-4 {reason}")
    _require(
        importlib.util.find_spec("flash_attn"), "needs the package flash-attn-4, a pre-release"
    )


def _check_flex_attention(device):
    _require(_is_gpu(device), "FlexAttention has a backward pass on GPUs alone")
    _require_capability(device, (8, 0), "FlexAttention")


def _check_compile(device):
    if _is_gpu(device):
        _require_capability(device, (7, 0), "torch.compile")
        _check_triton(device)
    elif isinstance(device, CPU):
        _require(compiler("C++"), "torch.compile needs a C++ compiler on a CPU (g++ or CXX)")


def _check_triton(device):
    _require(_is_gpu(device), "Triton kernels need an NVIDIA or AMD GPU")
    check("package triton", device)
    _require(compiler("C"), "triton needs a C compiler (gcc or clang)")


def _check_autotuning(device):
    sms = device.multiprocessors if _is_nvidia(device) else None
    if sms and sms < INDUCTOR_SMS:
        return f"max-autotune tunes no matrix products on {sms} SMs (it needs {INDUCTOR_SMS})"


def _check_cudnn_attention(device):
    # The conditions of torch's sdp_utils.cpp; GPT-2's shapes meet those that are left out here.
    _require(_is_nvidia(device), "cuDNN's attention needs an NVIDIA GPU")
    _require_capability(device, (8, 0), "cuDNN's attention")
    _require((torch.backends.cudnn.version() or 0) >= 90_000, "cuDNN's attention needs cuDNN 9")
    if device.capability < (9, 0):
        return "cuDNN's attention: made for compute capability 9.0 and newer"


def _check_bitsandbytes(device):
    check("package bitsandbytes", device)
    _require(not isinstance(device, MPS), "bitsandbytes has no 8-bit optimizer for Apple GPUs")


def _check_distributed(device):
    _require(torch.distributed.is_available(), "this build of torch has no torch.distributed")
    _require(not isinstance(device, MPS), "torch.distributed has no backend for Apple GPUs")


def _has_nccl(device):
    return _is_gpu(device) and torch.distributed.is_nccl_available()


def _moves_pages(device):
    # Windows, and Linux inside Windows, copy all managed memory at once.
    return _is_gpu(device) and not re.search("windows|microsoft", platform.platform(), re.I)


def _required(supported, reason):
    return lambda device: _require(supported(device), reason)


def _without(supported, note):
    return lambda device: None if supported(device) else WithoutEffect(note)


CHECKS = {
    "tf32": _without(_has_tf32, "TF32: no effect expected on this device"),
    "bfloat16": _check_bfloat16,  # computed natively
    "compile": _check_compile,  # with Inductor and its compilers
    "autotuning": _check_autotuning,  # tuned matrix products
    "triton": _check_triton,  # custom kernels
    "bitsandbytes": _check_bitsandbytes,
    "cudnn_attention": _check_cudnn_attention,
    "cuda_graphs": _without(_is_gpu, "CUDA graphs: no effect on this device"),
    "device_queue": _without(_is_accelerator, "asynchronous logging: no effect without a queue"),
    "copy_engine": _without(_is_accelerator, "prefetching: no effect without a copy to wait for"),
    "device_memory": _without(_is_accelerator, "corpus on the device: no effect without a copy"),
    "float16": _check_float16,  # on tensor cores, like float8
    "float8": _check_float8,
    "ocp_float8": _required(_has_ocp_float8, "8-bit floats of MI300 have another exponent bias"),
    "managed_memory": _without(_moves_pages, "not paged on this device"),
    "pinned_memory": _required(_is_gpu, "pinned memory is for copies to an NVIDIA or AMD GPU"),
    "int8": _check_int8,
    "flash_attention_4": _check_flash_attention_4,
    "flex_attention": _check_flex_attention,
    "mixed_moments": _required(_is_gpu, "AdamW with bfloat16 moments is a kernel for GPUs alone"),
    "gpu_allocator": _without(_is_gpu, "expandable segments: no effect without a GPU"),
    "foreach": _without(_is_accelerator, "a loop over parameters, which AdamW always is on a CPU"),
    "triton_tuning": _without(_is_gpu, "coordinate descent: tunes kernels of GPUs alone"),
    "distributed": _check_distributed,  # processes that form a group
    "nccl": _required(_has_nccl, "needs NCCL, so an NVIDIA or AMD GPU; gloo has no bfloat16 hook"),
}
