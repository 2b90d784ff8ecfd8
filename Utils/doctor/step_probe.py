"""Probe of the memory and the time of the baseline's step."""

import math

from Utils.base.units import GIB
from Utils.device import auto_shape, cgroup, measured_ceilings
from Utils.device.cpu import CPU
from Utils.doctor.findings import Finding, fault
from Utils.harness import step_work


def step(args):
    """Check memory and time of a step of the baseline at this shape."""
    B, T, config = args.batch_size, args.seq_len, args.config
    needed = auto_shape.baseline_bytes(config, config.parameters(), B, T) / GIB
    limit = cgroup.cgroup_limits()[1] if isinstance(args.hardware, CPU) else math.inf
    free = min(args.hardware.free_memory_bytes, limit) / GIB
    auto = ", chosen for this device" if args.auto else ""
    text = f"{args.model} at {B}x{T} tokens{auto}: in float32 at least {needed:.1f} GiB"
    figures = {"tokens": B * T, "least_gib": round(needed, 1), "free_gib": round(free, 1)}
    yield Finding("step", f"{text} of the {free:.1f} free", figures=figures)
    if needed > free:
        text = f"needs {needed:.1f} GiB, {free:.1f} free: it will run out of memory"
        yield fault("step", text, "free memory, or reduce BATCH_SIZE, SEQ_LEN or MODEL")

    ceilings = measured_ceilings.ceilings(args.hardware)
    if ceilings is None:
        text = "matrix products and memory bandwidth have not been measured here"
        yield Finding("ceilings", text, "note", "run make ceilings once")
        return
    rates = ceilings["matmul_tflops"]
    fastest = max(rates, key=rates.get)
    floor_ms = step_work.floor_ms(config, B, T, fastest, ceilings)
    text = f"{measured_ceilings.summary(ceilings)}; "
    text += f"a step takes at least {floor_ms:,.1f} ms in {fastest}"
    figures = {f"{precision}_tflops": rate for precision, rate in rates.items()}
    yield Finding("ceilings", text, figures=figures | {"floor_ms": round(floor_ms, 1)})
