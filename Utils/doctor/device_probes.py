"""Probes of torch and its device: build, driver, GPU, threads."""

import os
import re
from importlib.metadata import version

import torch

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.base.units import GIB
from Utils.device import cgroup, device_choice, drivers
from Utils.device.cpu import CPU
from Utils.device.cuda import CUDA
from Utils.doctor.findings import Finding, fault
from Utils.doctor.host_probes import REQUIREMENTS
from Utils.harness import settings
from Utils.harness.run_quality import SLOWDOWNS

GET_STARTED = "see https://pytorch.org/get-started"


def torch_build(args):
    found = f"{torch.__version__}, built for {drivers.torch_toolkit() or 'CPUs only'}"
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 11):
        yield Finding("torch", f"{found}; tested from 2.11 on", "note", REQUIREMENTS)
    else:
        yield Finding("torch", found)


def driver(args):
    """Check that torch sees the NVIDIA GPUs of this machine, or find out why not."""
    toolkit = drivers.torch_toolkit()
    count, error = drivers.gpus_of_torch()
    seen = drivers.gpus_of_driver()
    name = seen["gpus"][0] if seen["gpus"] else "NVIDIA GPU"
    newest = "{}.{}".format(*seen["cuda"]) if seen["cuda"] else ""
    if seen["source"] == "bus":
        what = "an NVIDIA GPU without NVIDIA's driver"
    elif seen["source"]:
        many = f" and {len(seen['gpus']) - 1} more" if len(seen["gpus"]) > 1 else ""
        what = f"{seen['driver']}{f', up to CUDA {newest}' if newest else ''}: {name}{many}"
    else:
        what = f"torch sees {count} GPUs" if count else "no NVIDIA GPU"
    if count or not seen["source"]:
        yield Finding("driver", what, figures={"gpus_of_torch": count})
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen["source"] == "bus":
        why, remedy = "", "install NVIDIA's driver"
    elif not toolkit.startswith("CUDA"):
        why = f"torch {version('torch')} is not built for CUDA"
        remedy = f"install torch for CUDA{f' {newest} or older' if newest else ''}: {GET_STARTED}"
    elif seen["cuda"] and seen["cuda"][0] < int(toolkit.split()[1].split(".")[0]):
        why = f"torch is built for {toolkit}"
        remedy = f"install a newer driver, or torch for CUDA {newest}: {GET_STARTED}"
    elif visible is not None and "No CUDA GPUs" in error:
        why, remedy = f"CUDA_VISIBLE_DEVICES={visible!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    elif seen["source"] == "kernel":
        why = f"this environment cannot reach it: {error}"
        remedy = "start the container with --gpus all; otherwise run nvidia-smi"
    else:
        why, remedy = error, "run nvidia-smi; reboot after a driver update"
    what = f"{what}; {why}" if why else what
    yield Finding("driver", what, "fault", remedy, figures={"gpus_of_torch": 0})


def device(args):
    """Check that the device of the run can compute, and leave it in args.hardware."""
    try:
        settings.settle(args)
    except UserError as error:
        remedy = error.remedy or "run make to list valid values"
        yield fault("settings", error.message, remedy, "run")
        return
    except Exception as error:  # of the driver
        yield fault("device", errors.first_line(error), "run nvidia-smi", "run")
        return
    chosen = args.hardware
    known = chosen.describe()
    figures = {"memory_gib": round(chosen.memory_bytes / GIB, 1)}
    if isinstance(chosen, CPU):
        what = f"{chosen.name}, {known['capability']}"
    else:
        figures["free_gib"] = round(chosen.free_memory_bytes / GIB, 1)
        what = f"{chosen.name} ({args.device}), "
        if "capability" in known:
            what += f"compute capability {known['capability']}, "
            figures["capability"] = float(known["capability"])
        what += f"{figures['memory_gib']:.1f} GiB, {figures['free_gib']:.1f} free"
    covered, built = True, []
    if isinstance(chosen, CUDA):
        covered, built = chosen.built_for()
        what += "; this build of torch supports it" if covered else ""
    yield Finding("device", what, figures={"type": known["type"], **figures})
    if " MIG " in chosen.name:
        what = "a slice of a GPU (MIG): other slices share its power and heat, and are not visible"
        yield Finding("device", what, "note")
    if not covered:
        what = f"this build of torch has no code for it, only for {' '.join(built)}"
        yield fault("device", what, f"install another build of torch: {GET_STARTED}", "run")
    if problem := device_choice.try_out(chosen):
        remedy = "run nvidia-smi" if known["type"] == "cuda" else REQUIREMENTS
        yield fault("device", f"first product failed: {problem}", remedy, "run")


def gpu(args):
    """Check other processes on the GPU, its readings and its power limit."""
    chosen = args.hardware
    if not isinstance(chosen, CUDA):
        return
    for process in chosen.other_processes:
        what = f"{process} also uses this GPU"
        yield Finding("gpu", what, "note", "end it before measuring: it shares memory and time")
    now = chosen.readings()
    if not now:
        what = "NVML does not answer: power, temperature and other processes are unknown"
        yield Finding("gpu", what, "note", "pip install nvidia-ml-py")
        return
    words = {
        "power_w": "drawing {:.0f} W",
        "power_limit_w": "limit {:.0f} W",
        "temperature_c": "{} C",
        "sm_clock_mhz": "SM clock {} MHz",
    }
    what = ", ".join(text.format(now[name]) for name, text in words.items() if name in now)
    held = now.get("throttle_reasons") or []
    slowed = [reason for reason in held if reason in SLOWDOWNS]
    what += f"; clocks limited by {', '.join(held)}" if held else "; clocks not limited"
    remedy = "improve cooling or the power supply" if slowed else ""
    figures = {name: now[name] for name in words if name in now}
    yield Finding("gpu", what, "note" if slowed else "ok", remedy, figures=figures)
    limit, usual = now.get("power_limit_w"), chosen.nvml.default_power_limit_w()
    if limit and usual and limit < usual:
        what = f"power limit {limit:.0f} W, below the default of {usual:.0f} W"
        yield Finding("gpu", what, "note", f"as root: nvidia-smi -pl {usual:.0f}")


def threads(args):
    """Check that torch uses no more threads than there are CPUs."""
    used, cpus = torch.get_num_threads(), cgroup.usable_cpus()
    what, figures = f"torch uses {used} threads for {cpus:g} CPUs", {"threads": used}
    share = f"for N runs at once set OMP_NUM_THREADS to {cpus:g} / N"
    if used > cpus:
        remedy = f"set OMP_NUM_THREADS={max(1, int(cpus))}"
        yield Finding("threads", what, "note", remedy, figures=figures)
    elif "OMP_NUM_THREADS" in os.environ and used < int(cpus):
        what = f"{what}, set by OMP_NUM_THREADS; {share}"
        yield Finding("threads", what, "note", figures=figures)
    else:
        yield Finding("threads", f"{what}; {share}", figures=figures)
