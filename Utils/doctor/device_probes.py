"""Probes of torch and its device: build, driver, GPU, threads."""

import os
import re

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
TESTED_FROM = (2, 11)  # torch
READINGS = {
    "power_w": "drawing {:.0f} W",
    "power_limit_w": "limit {:.0f} W",
    "temperature_c": "{} C",
    "sm_clock_mhz": "SM clock {} MHz",
}


def torch_build(args):
    text = f"{torch.__version__}, built for {drivers.torch_toolkit() or 'CPUs only'}"
    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    if (int(major), int(minor)) < TESTED_FROM:
        oldest = "{}.{}".format(*TESTED_FROM)
        yield Finding("torch", f"{text}; tested from {oldest} on", "note", REQUIREMENTS)
    else:
        yield Finding("torch", text)


def driver(args):
    """Check that torch sees the NVIDIA GPUs of this machine, or find out why not."""
    count, error = drivers.gpus_of_torch()
    seen = drivers.gpus_of_driver()
    newest = "{}.{}".format(*seen["cuda"]) if seen["cuda"] else ""
    if seen["source"] in ("NVML", "kernel"):
        text = f"{seen['driver']}, up to CUDA {newest}" if newest else f"{seen['driver']}"
        text += f": {seen['gpus'][0] if seen['gpus'] else 'NVIDIA GPU'}"
        if len(seen["gpus"]) > 1:
            text += f" and {len(seen['gpus']) - 1} more"
    elif seen["source"] == "bus":
        text = "an NVIDIA GPU without NVIDIA's driver"
    else:
        text = f"torch sees {count} GPUs" if count else "no NVIDIA GPU"
    figures = {"gpus_of_torch": count}
    if count or not seen["source"]:
        yield Finding("driver", text, figures=figures)
        return
    reason, remedy = _why_unseen(seen, newest, error)
    text = f"{text}; {reason}" if reason else text
    yield Finding("driver", text, "fault", remedy, figures=figures)


def _why_unseen(seen, newest, error):
    """Return why torch does not see a GPU, and the remedy. error: torch's."""
    toolkit = drivers.torch_toolkit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen["source"] == "bus":
        return "", "install NVIDIA's driver"
    if not toolkit.startswith("CUDA"):
        suitable = f"CUDA {newest} or older" if newest else "CUDA"
        reason = f"torch {torch.__version__} is not built for CUDA"
        return reason, f"install torch for {suitable}: {GET_STARTED}"
    if seen["cuda"] and seen["cuda"][0] < int(toolkit.split()[1].split(".")[0]):
        remedy = f"install a newer driver, or torch for CUDA {newest}: {GET_STARTED}"
        return f"torch is built for {toolkit}", remedy
    if visible is not None and "No CUDA GPUs" in error:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    if seen["source"] == "kernel":
        reason = f"this environment cannot reach it: {error}"
        return reason, "start the container with --gpus all; otherwise run nvidia-smi"
    return error, "run nvidia-smi; reboot after a driver update"


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
    facts = chosen.describe()
    figures = {"type": facts["type"], "memory_gib": round(chosen.memory_bytes / GIB, 1)}
    if isinstance(chosen, CPU):
        yield Finding("device", f"{chosen.name}, {facts['capability']}", figures=figures)
    else:
        figures["free_gib"] = round(chosen.free_memory_bytes / GIB, 1)
        text = f"{chosen.name} ({args.device}), "
        if isinstance(chosen, CUDA):
            text += f"compute capability {facts['capability']}, "
            figures["capability"] = float(facts["capability"])
        text += f"{figures['memory_gib']:.1f} GiB, {figures['free_gib']:.1f} free"
        yield Finding("device", text, figures=figures)
    if " MIG " in chosen.name:
        text = "a slice of a GPU (MIG): other slices share its power and heat, and are not visible"
        yield Finding("device", text, "note")
    if problem := device_choice.try_out(chosen):
        remedy = "run nvidia-smi" if isinstance(chosen, CUDA) else REQUIREMENTS
        if re.search("no kernel image|invalid device function", problem):  # of CUDA and of ROCm
            remedy = f"install a build of torch with code for this GPU: {GET_STARTED}"
        yield fault("device", f"first product failed: {problem}", remedy, "run")


def gpu(args):
    """Check other processes on the GPU, its readings and its power limit."""
    chosen = args.hardware
    if not isinstance(chosen, CUDA):
        return
    for process in chosen.other_processes:
        remedy = "end it before measuring: it shares memory and time"
        yield Finding("gpu", f"{process} also uses this GPU", "note", remedy)
    readings = chosen.readings()
    if not readings:
        text = "NVML does not answer: power, temperature and other processes are unknown"
        yield Finding("gpu", text, "note", "pip install nvidia-ml-py")
        return
    figures = {name: readings[name] for name in READINGS if name in readings}
    texts = [READINGS[name].format(value) for name, value in figures.items()]
    limits = readings.get("throttle_reasons") or []
    text = f"{', '.join(texts)}; clocks {'limited by' if limits else 'not limited'}"
    text = f"{text} {', '.join(limits)}".strip()
    if set(limits) & set(SLOWDOWNS):
        yield Finding("gpu", text, "note", "improve cooling or the power supply", figures=figures)
    else:
        yield Finding("gpu", text, figures=figures)
    limit_w, default_w = readings.get("power_limit_w"), chosen.nvml.default_power_limit_w()
    if limit_w and default_w and limit_w < default_w:
        text = f"power limit {limit_w:.0f} W, below the default of {default_w:.0f} W"
        yield Finding("gpu", text, "note", f"as root: nvidia-smi -pl {default_w:.0f}")


def threads(args):
    """Check that torch uses no more threads than there are CPUs."""
    count = torch.get_num_threads()
    cpus = cgroup.usable_cpus()
    text = f"torch uses {count} threads for {cpus:g} CPUs"
    if count > cpus:
        yield Finding("threads", text, "note", f"set OMP_NUM_THREADS={max(1, int(cpus))}")
    else:
        yield Finding("threads", text, figures={"threads": count})
