"""Probes of a run: its corpus, its memory, and the load of the cores that it will have."""

import importlib.util
import math
import os

import torch

from Utils.base.errors import UserError
from Utils.base.units import GIB
from Utils.corpus import token_cache
from Utils.device import auto_shape, cgroup, measured_ceilings
from Utils.device.cpu import CPU
from Utils.doctor import host_probes
from Utils.doctor.findings import fault, ok


def processor(args):
    """Check the load of the usable cores, and that torch has no more threads than there are."""
    count = torch.get_num_threads()
    cpus = cgroup.usable_cpus()
    load = os.getloadavg()[0]
    remedy = ""
    if count > cpus:
        remedy = f"set OMP_NUM_THREADS={max(1, int(cpus))}"
    elif load > cpus / 2:
        remedy = "stop other programs before measuring: they share the CPU"
    text = f"torch uses {count} threads for {cpus:g} CPUs, whose 1-minute load is {load:.1f}"
    yield ok("processor", text, remedy)


def corpus(args):
    """Check the tokens of the run, and what tokenizing them needs."""
    if args.dataset == "synthetic":
        yield ok("corpus", "synthetic: random tokens; needs nothing")
        return
    try:
        path, files = token_cache.token_file(args.dataset)
    except UserError as error:
        yield fault("corpus", error.message, error.remedy, "run")
        return
    if path.exists():
        yield ok("corpus", f"{args.dataset}: tokens in {path}")
        return
    source = "the Hub, over the network" if files is None else f"{files} files"
    text = f"{args.dataset}: will be tokenized once, from {source}"
    packages = ["tiktoken"] if args.dataset == "stdlib" else ["tiktoken", "datasets"]
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if problem := host_probes.unwritable(path.parent):
        yield fault("corpus", f"{text}; {problem}", "set CACHE_DIR to another folder", "run")
    elif missing:
        remedy = f"pip install {' '.join(missing)}"
        yield fault("corpus", f"{text}; needs {' and '.join(missing)}", remedy, "run")
    else:
        yield ok("corpus", text)


def step(args):
    """Check the memory of a step of the baseline at this shape, and name the ceilings."""
    B, T, config = args.batch_size, args.seq_len, args.config
    needed = auto_shape.baseline_bytes(config, config.parameters(), B, T)
    limit = cgroup.cgroup_limits()[1] if isinstance(args.hardware, CPU) else math.inf
    free = min(args.hardware.free_memory_bytes, limit)
    text = f"{args.model} at {B}x{T} tokens needs at least {needed / GIB:.1f} GiB in float32"
    text += f", {free / GIB:.1f} are free"
    if needed > free:
        remedy = "free memory, or reduce BATCH_SIZE, SEQ_LEN or MODEL"
        yield fault("step", f"{text}: it will run out of memory", remedy)
    else:
        yield ok("step", text)
    if ceilings := measured_ceilings.ceilings(args.hardware):
        yield ok("ceilings", measured_ceilings.summary(ceilings))
    else:
        yield ok("ceilings", "have not been measured here", "run make ceilings once")
