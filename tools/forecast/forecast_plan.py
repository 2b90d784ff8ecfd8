"""Forecasts of peak memory and time, for this device or any other in the table."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace

from sympy import nextprime

from tools.forecast import fake_run, gpus
from tools.forecast.imagined_gpu import ImaginedGPU, workspace_bytes
from tools.forecast.kernel_work import StepKernels, kernels_at
from tools.forecast.step_time import StepTime, step_time
from Utils.base import command_line
from Utils.base.child import in_child
from Utils.base.errors import Unsupported, UserError
from Utils.base.gpt2_sizes import VOCABULARY
from Utils.base.progress_display import ProgressDisplay
from Utils.corpus import token_cache
from Utils.device import datasheets, device_choice
from Utils.device.cuda import CUDA
from Utils.harness.settings import Settings, check_need, parse_args
from Utils.harness.step_work import precision_of
from Utils.scripts import ladder


@dataclass(frozen=True)
class StepForecast:
    """A technique's step at one shape on a device. Its memory is in bytes."""

    technique: str = ""
    tokens: int = 0  # a step
    peak: int = 0  # most bytes of all tensors together
    largest_batch: int = 0  # the largest that fits
    reason: str = ""  # reason for a missing forecast, or why it does not run there
    kernels: StepKernels | None = None
    batch: int = 0
    time: StepTime | None = None


def forecast_device(name, memory=None):
    """Return the device to forecast for. Raises UserError if there is no such device.

    It is a device of the table of datasheets, a GPU with `memory` bytes, or one that
    `device_choice` finds here. A forked process looks for the latter, as one that has used a GPU
    cannot fork.
    """
    if not re.match("auto$|cpu$|mps$|cuda", name):  # it names a row of the table
        entry = gpus.datasheet_by_key(name)
        size = memory or entry.memory_bytes
        return ImaginedGPU(entry.names[0], size, entry.capability, entry.architecture)
    if memory and name.startswith("cuda"):
        return ImaginedGPU("an imagined GPU", memory)

    try:
        return in_child(_device_here, name)
    except UserError as error:
        remedy = "MEMORY=80GiB imagines one" if "cuda" in name else error.remedy
        raise UserError(error.message, remedy) from None


def _device_here(name):
    """Return a device that is here, an ImaginedGPU for a GPU."""
    device = device_choice.choose(name)
    if not isinstance(device, CUDA):
        return device
    return ImaginedGPU(device.name, device.memory_bytes, device.capability, device.architecture)


def settings(values, device):
    """Return the Settings of a script on a device. values: a command's flags, by name."""
    flags = command_line.as_flags(values | {"rounds": 1, "round": 0})
    args = parse_args("", flags, "forecast", hardware=device)
    return args.replace(argv=[*flags, f"--seq-len={args.seq_len}"])


def settings_of(args, memory=None):
    """Return the Settings of a script on the device that a command's args name.

    memory: see `forecast_device`.
    """
    values = {name: getattr(args, name) for name in command_line.RUN_SETTINGS}
    return settings(values, forecast_device(args.device, memory))


def techniques_of(names, scripts):
    """Return the techniques of these names and groups, each once. scripts: a Ladder."""
    techniques = {}
    for name in names:
        group = scripts.group(name) or [scripts.get(name)]
        techniques |= {technique.name: technique for technique in group}
    return list(techniques.values())


def recordings(techniques, args):
    """Return the Recording of each technique at a prime batch, or a reason in place of it."""
    # A prime, at least the batch size, that divides no other dimension of a tensor. So a tensor
    # whose size it divides is one that grows with the batch.
    config = args.config
    product = config.n_layer * config.n_head * config.n_embd * args.seq_len * VOCABULARY
    prime = nextprime(max(97, args.batch_size) - 1)
    while product % prime == 0:
        prime = nextprime(prime)

    tasks = []
    for technique in techniques:
        flag = f"--batch-size={prime * fake_run.batch_multiple(technique.needs)}"
        tasks.append((technique, [*args.argv, flag], args.hardware))

    # What all processes need, once
    with suppress(UserError):  # the script itself will raise it
        token_cache.load_tokens(args.dataset)
    if any("compile" in technique.code for technique in techniques):
        # They take seconds, and only techniques that compile need them.
        import torch._dynamo.backends.common  # noqa: PLC0415
        import torch._inductor.decomposition  # noqa: F401, PLC0415

    display = ProgressDisplay("recording one step of each script", len(tasks))
    recordings = []
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for recording in threads.map(recorded, tasks):
            recordings.append(recording)
            display.update()
    display.close()
    return recordings


def recorded(task):
    """Return fake_run.recording(*task) from a child process, None if it was killed.

    Nothing that a script sets remains. A fork, as on Linux, needs no imports.
    """
    with suppress(BrokenProcessPool):
        return in_child(fake_run.recording, *task)


def memory_forecast(recording, batch, budget, device):
    """Return the StepForecast of a technique at a batch size, without its time.

    recording: at a prime batch, or a reason for none, or None. budget: bytes that its largest batch
    may need. device: a device of Utils.device, for its workspace.
    """
    if not isinstance(recording, fake_run.Recording):
        return StepForecast(reason=recording or "cannot be forecast: its process was killed")

    # The batch
    fixed = workspace_bytes(device)
    largest = recording.largest_batch(budget - fixed)
    try:
        check_need(f"batch multiple of {recording.multiple}", Settings(batch_size=batch))
    except Unsupported as error:
        return StepForecast(reason=str(error), largest_batch=largest)

    return StepForecast(
        peak=recording.peak(batch) + fixed,
        largest_batch=largest,
        kernels=kernels_at(recording.work, batch // recording.multiple),
        batch=batch,
    )


def step_forecast(technique, memory, args):
    """Return a technique's StepForecast with its time on the device of args.

    It has none without a datasheet. memory: result of `memory_forecast`.
    """
    entry = datasheets.datasheet_for(args.hardware.name)
    time = None
    if entry and not memory.reason and not memory.kernels.foreign:
        scripts = ladder.repository()
        precision = precision_of(technique.needs)
        with suppress(UserError):  # its parent may be misspelt
            ancestors = scripts.lineage(technique.name)
            if any(scripts.get(name).path.parent.name == "precision" for name in ancestors):
                precision = None  # no published figure has these precisions
        time = step_time(memory.kernels, entry, precision)

    tokens = memory.batch * args.seq_len
    return replace(memory, technique=technique.name, tokens=tokens, time=time)


def forecasts_on_device(techniques, args, budget):
    """Return the StepForecasts of techniques on the device of args. budget: see memory_forecast."""
    forecasts = []
    for technique, recording in zip(techniques, recordings(techniques, args), strict=True):
        memory = memory_forecast(recording, args.batch_size, budget, args.hardware)
        forecasts.append(step_forecast(technique, memory, args))
    return forecasts
