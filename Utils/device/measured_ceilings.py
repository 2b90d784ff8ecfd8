"""Measured ceilings of a device: matrix products of each precision, and memory bandwidth."""

import hashlib
import json

import torch

from Utils.base import paths
from Utils.base.errors import Unsupported
from Utils.base.units import MIB
from Utils.device import capabilities
from Utils.device.capabilities import Emulated
from Utils.device.cuda import CUDA

# Needs that set the precision of matrix products, and the types of their operands.
PRECISIONS = {"tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SECONDS = 0.5  # for each measurement
EMULATED_N = 256  # small, as emulated products may be hundreds of times slower


def matmul_tflops(precision, n, device, seconds=SECONDS):
    """Return TFLOP/s of an n x n x n product of normal random numbers, the fastest of several.

    precision: a name of PRECISIONS or "float32". device: torch.device.
    """
    dtype = PRECISIONS.get(precision, torch.float32)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        fastest = _fastest("torch.mm(a, b, out=out)", seconds, a=a, b=b, out=torch.empty_like(a))
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * n**3 / fastest / 1e12


def bandwidth_gb_s(device, mib, seconds=SECONDS):
    """Return GB/s (10^9 bytes read or written) of copying a tensor of so many MiB.

    It must be far larger than the caches.
    """
    source = torch.randn(mib * 2**20 // 4, device=device)
    fastest = _fastest("out.copy_(a)", seconds, a=source, out=torch.empty_like(source))
    return 2 * source.nbytes / fastest / 1e9


def _fastest(statement, seconds, **names):
    """Return the seconds of the fastest call: slower ones do not show the device's limit."""
    from torch.utils.benchmark import Timer  # here, as training scripts do not need it

    timer = Timer(statement, globals=names | {"torch": torch}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=seconds).times)


def measure(device, seconds=SECONDS):
    """Measure the ceilings of a device: a dict.

    matmul_tflops by precision, matmul_n at which each was reached, bandwidth_gb_s, device, torch;
    emulated_tflops, the rates of emulated precisions, which are no ceilings.
    """
    on_gpu = device.torch_device.type != "cpu"
    sizes = (2048, 4096, 8192) if on_gpu else (1024, 2048)
    sizes = [n for n in sizes if 3 * 4 * n**2 < device.memory_bytes / 4]
    # The last cache of a GPU holds up to 256 MiB (MI300X).
    mib = min(1024, int(device.memory_bytes / MIB / 8)) if on_gpu else 256
    best, emulated = {}, {}
    for precision in ("float32", *PRECISIONS):
        how = _how_computed(precision, device)
        if isinstance(how, Emulated):
            rate = matmul_tflops(precision, EMULATED_N, device.torch_device, seconds)
            emulated[precision] = float(f"{rate:.3g}")
        elif how is not None:
            rates = {n: matmul_tflops(precision, n, device.torch_device, seconds) for n in sizes}
            best[precision] = max((rate, n) for n, rate in rates.items())
    return {
        "device": device.name,
        "torch": torch.__version__,
        "matmul_tflops": {precision: round(rate, 4) for precision, (rate, _) in best.items()},
        "matmul_n": {precision: n for precision, (_, n) in best.items()},
        "bandwidth_gb_s": round(bandwidth_gb_s(device.torch_device, mib, seconds), 2),
        "emulated_tflops": emulated,
    }


def _how_computed(precision, device):
    """Return the limit of a precision's products here, as `checks.check`; None if unsupported."""
    if precision == "float32":
        return ""
    try:
        return capabilities.check(precision, device)
    except Unsupported:
        return None


def file_of(device):
    kind = "cuda" if isinstance(device, CUDA) else device.torch_device.type  # imagined or here
    key = f"{device.name}\0{torch.__version__}\0{kind}"
    return paths.CACHE / "ceilings" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def ceilings(device):
    """Return the stored result of `measure` for this device, or None."""
    try:
        known = json.loads(file_of(device).read_text())
    except (OSError, ValueError):
        return None
    return known if "emulated_tflops" in known else None  # else of an older version
