"""Probes of torch and its device: build, driver, GPU."""

import os
import re

import torch

from Utils.base import errors
from Utils.base.errors import UserError
from Utils.base.units import GIB
from Utils.device import device_choice, drivers
from Utils.device.cuda import CUDA
from Utils.doctor.findings import fault, ok
from Utils.doctor.host_probes import REQUIREMENTS
from Utils.harness import settings
from Utils.harness.run_quality import SLOWDOWNS

GET_STARTED = "see https://pytorch.org/get-started"
TESTED_FROM = (2, 11)  # torch


def torch_build(args):
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    text = f"{torch.__version__}, built for {drivers.torch_toolkit() or 'CPUs only'}"
    if version < TESTED_FROM:
        text += "; tested from {}.{} on".format(*TESTED_FROM)
    yield ok("torch", text, REQUIREMENTS if version < TESTED_FROM else "")


def driver(args):
    """Check that torch sees the NVIDIA GPUs of this machine, or find out why not."""
    count, error = drivers.gpus_of_torch()
    seen = drivers.gpus_of_driver()
    text = seen.driver or "none of NVIDIA"
    if count or not seen.driver:
        yield ok("driver", f"{text}; torch sees {count} GPUs")
        return
    newest = "{}.{}".format(*seen.cuda) if seen.cuda else ""
    text += f", up to CUDA {newest}" if newest else ""
    reason, remedy = _why_unseen(seen, newest, error)
    yield fault("driver", f"{text}, for {seen.gpu}; {reason}", remedy)


def _why_unseen(seen, newest, error):
    """Return why torch does not see a GPU, and the remedy. error: torch's."""
    toolkit = drivers.torch_toolkit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not toolkit.startswith("CUDA"):
        suitable = f"CUDA {newest} or older" if newest else "CUDA"
        reason = f"torch {torch.__version__} is not built for CUDA"
        return reason, f"install torch for {suitable}: {GET_STARTED}"
    if seen.cuda and seen.cuda[0] < int(toolkit.split()[1].split(".")[0]):
        remedy = f"install a newer driver, or torch for CUDA {newest}: {GET_STARTED}"
        return f"torch is built for {toolkit}", remedy
    if visible is not None and "No CUDA GPUs" in error:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    if seen.driver == drivers.KERNEL_MODULE:
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
    on_cuda = isinstance(chosen, CUDA)
    text = f"{chosen.name}, {chosen.memory_bytes / GIB:.1f} GiB"
    if capability := chosen.describe().get("capability"):
        text += f", {'compute capability ' if on_cuda else ''}{capability}"
    if " MIG " in chosen.name:
        text += "; a slice of a GPU: other slices share its power and heat, and are not visible"
    yield ok("device", text)
    if problem := device_choice.try_out(chosen):
        remedy = "run nvidia-smi" if on_cuda else REQUIREMENTS
        if re.search("no kernel image|invalid device function", problem):  # of CUDA and of ROCm
            remedy = f"install a build of torch with code for this GPU: {GET_STARTED}"
        yield fault("device", f"first product failed: {problem}", remedy, "run")


def gpu(args):
    """Check other processes on the GPU, and what limits its clocks."""
    if not isinstance(args.hardware, CUDA):
        return
    for process in args.hardware.other_processes:
        remedy = "end it before measuring: it shares memory and time"
        yield ok("gpu", f"{process} also uses this GPU", remedy)
    readings = args.hardware.readings()
    if not readings:
        text = "NVML does not answer: power, temperature and other processes are unknown"
        yield ok("gpu", text, "pip install nvidia-ml-py")
        return
    limits = readings.get("throttle_reasons") or []
    slowed = set(limits) & set(SLOWDOWNS)
    text = f"clocks limited by {', '.join(limits)}" if limits else "clocks not limited"
    yield ok("gpu", text, "improve cooling or the power supply" if slowed else "")
