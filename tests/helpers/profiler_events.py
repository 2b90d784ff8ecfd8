"""Events of a trace as torch.profiler exports it."""

from itertools import count

IDS = count(1)


def event(name, start, us, thread=1, cat="cpu_op", **args):
    """An operator of so many microseconds."""
    span = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": us, "tid": thread}
    return span | {"args": args}


def annotation(name, start, us, thread=1):
    return event(name, start, us, thread, "user_annotation")


def launched(name, host_us, device_us, us, thread=1):
    """A launch on the host, and the kernel, copy or fill that it launched."""
    cat = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}.get(name.split()[0], "kernel")
    both = {"correlation": next(IDS)}
    launch = event("cudaLaunchKernel", host_us, 3, thread, "cuda_runtime", **both)
    return [launch, event(name, device_us, us, 7, cat, **both)]


def steps(number, us):
    return [annotation(f"ProfilerStep#{step}", step * us, us) for step in range(number)]


def shaped(name, start, us, *shapes):
    """An operator on float32 tensors."""
    return event(name, start, us, **{"Input Dims": shapes, "Input type": ["float"] * len(shapes)})
