"""Measured ceilings of a device: matrix products of each precision, and memory bandwidth."""

import torch

from Utils.base import files, paths
from Utils.base.errors import Unsupported
from Utils.base.schema import Positive
from Utils.base.units import MIB
from Utils.device import capabilities
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA

# Needs that set the precision of matrix products, and the types of their operands.
PRECISIONS = {"tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CEILINGS = {  # what `measure` returns
    "matmul_tflops": {"*": Positive},
    "bandwidth_gb_s": Positive,
    "emulated_tflops": {"*": float},
    "other_cpu_share?": float,
}
SECONDS = 0.5  # for each measurement
BUSY_SHARE = 0.05  # share of CPU time above which other processes may slow a measurement


def matmul_precision():
    """Return the precision of float32 products, "highest" or "high", by either API of torch.

    torch's own function raises an error if a script has used its newer API.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        is_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return "high" if is_tf32 else "highest"


def matmul_tflops(precision, n, device):
    """Return TFLOP/s of an n x n x n product of normal random numbers, the fastest of several.

    precision: a name of PRECISIONS or "float32". device: torch.device.
    """
    dtype = PRECISIONS.get(precision, torch.float32)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    before = matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    fastest = _fastest("torch.mm(a, b, out=out)", a=a, b=b, out=torch.empty_like(a))
    torch.set_float32_matmul_precision(before)
    return 2 * n**3 / fastest / 1e12


def bandwidth_gb_s(device, mib):
    """Return GB/s (10^9 bytes read or written) of copying a tensor.

    mib: its size in MiB, which must be far larger than the caches.
    """
    source = torch.randn(mib * 2**20 // 4, device=device)
    fastest = _fastest("out.copy_(a)", a=source, out=torch.empty_like(source))
    return 2 * source.nbytes / fastest / 1e9


def _fastest(statement, **names):
    """Return the seconds of the fastest call: slower ones do not show the device's limit."""
    from torch.utils.benchmark import Timer  # noqa: PLC0415  (scripts do not need it)

    timer = Timer(statement, globals=names | {"torch": torch}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=SECONDS).times)


def measure(device):
    """Return the ceilings of a device: matmul_tflops by precision, bandwidth_gb_s, device, torch.

    Also emulated_tflops, which are not ceilings; other_cpu_share, the share of the machine's CPU
    time that other processes used meanwhile.
    """
    before = CPU().counters()
    torch_device = device.torch_device

    # Choose matrices that fit the memory, and copies that do not fit the caches: the last cache of
    # a GPU has up to 256 MiB (MI300X).
    sizes = [1024, 2048]
    copied_mib = 256
    if torch_device.type != "cpu":
        sizes = [2048, 4096, 8192]
        copied_mib = min(1024, int(device.memory_bytes / MIB / 8))
    sizes = [n for n in sizes if 3 * 4 * n**2 < device.memory_bytes / 4]

    # Measure the precisions that the device supports.
    tflops_by_precision = {}
    emulated_tflops = {}
    for precision in ("float32", *PRECISIONS):
        try:
            limit = "" if precision == "float32" else capabilities.check(precision, device)
        except Unsupported:
            continue
        if isinstance(limit, capabilities.Emulated):
            # A small product, as emulation may be hundreds of times slower.
            tflops = matmul_tflops(precision, 256, torch_device)
            emulated_tflops[precision] = float(f"{tflops:.3g}")
        else:
            rates = [matmul_tflops(precision, n, torch_device) for n in sizes]
            tflops_by_precision[precision] = round(max(rates), 4)

    bandwidth = round(bandwidth_gb_s(torch_device, copied_mib), 2)

    # Find the CPU time that other processes used meanwhile.
    growth = {name: value - before[name] for name, value in CPU().counters().items()}
    other_cpu_s = max(0.0, growth["busy_cpu_s"] - growth["own_cpu_s"])

    return {
        "device": device.name,
        "torch": torch.__version__,
        "matmul_tflops": tflops_by_precision,
        "bandwidth_gb_s": bandwidth,
        "emulated_tflops": emulated_tflops,
        "other_cpu_share": round(other_cpu_s / max(growth["all_cpu_s"], 0.01), 3),
    }


def summary(ceilings):
    """Return the result of `measure` in words."""
    rates = [f"{name} {tflops:,.2f}" for name, tflops in ceilings["matmul_tflops"].items()]
    emulated = ceilings["emulated_tflops"].items()
    rates += [f"{name} {tflops:.2g} (emulated)" for name, tflops in emulated]
    bandwidth = ceilings["bandwidth_gb_s"]
    text = f"matrix products in TFLOP/s: {', '.join(rates)}; memory {bandwidth:,.0f} GB/s"

    if is_busy(ceilings):
        share = ceilings["other_cpu_share"]
        text += f"; too low, as other processes took {share:.0%} of the machine meanwhile"
    return text


def is_busy(ceilings):
    """Return whether other processes may have slowed the measurement."""
    return ceilings.get("other_cpu_share", 0.0) > BUSY_SHARE


def file_of(device):
    """Return the path at which the ceilings of a device, real or imagined, are stored."""
    kind = "cuda" if isinstance(device, CUDA) else device.torch_device.type
    key = f"{device.name}\0{torch.__version__}\0{kind}"
    return paths.CACHE / "ceilings" / f"{paths.digest(key)}.json"


def ceilings(device):
    """Return the stored result of `measure` for this device, or None."""
    return files.read_cache(file_of(device), CEILINGS, f"`{paths.COMMAND} ceilings` measures again")


def stored_or_measured(device, again=False):
    """Return the ceilings of this device.

    They are measured if there are none, if the machine was busy before, or `again`.
    """
    stored = None if again else ceilings(device)
    if stored and not is_busy(stored):
        return stored
    measured = measure(device)
    files.write_json(file_of(device), measured)
    return measured
