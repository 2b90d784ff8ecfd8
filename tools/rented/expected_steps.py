"""The device, its shape, and forecasts of the steps that pieces run there.

It imports torch and forks, so that callers use it in a child process.
"""

import torch

from tools.forecast import forecast_plan, gpus
from tools.rented import pieces
from Utils.base.units import GIB
from Utils.device import capabilities, datasheets, device_choice, measured_ceilings
from Utils.device.cuda import CUDA
from Utils.harness.settings import SECONDS_ON_GPU
from Utils.scripts.ladder import repository


def conditions(values):
    """Return what decides a plan, a dict: device, torch, precision, and the shape of the ladder.

    values: the settings of a run by name. Raises UserError.
    """
    device = forecast_plan.forecast_device(values["device"])
    args = forecast_plan.settings(values, device)
    is_gpu = isinstance(device, CUDA) or device.torch_device.type != "cpu"
    return {
        "device": device.name,
        "torch": torch.__version__,
        "precision": capabilities.precision(device),
        "batch_size": args.batch_size,
        "seq_len": args.seq_len,
        "longest": args.config.block_size,
        "min_seconds": SECONDS_ON_GPU if is_gpu else 0.0,
    }


def forecasts(values, scripts_by_shape):
    """Return a forecast for each script and shape, a list of dicts.

    scripts_by_shape: sets of names by (batch size, tokens a sequence). A forecast has the seconds
    of a step with the ends of their range, None without a rule for them, and the reason why the
    script does not run, or "". Scripts outside the ladder and FASTEST have no seconds, as a
    recording takes some.
    """
    device = forecast_plan.forecast_device(values["device"])
    budget = device_choice.usable_bytes(device.memory_bytes)
    entry = gpus.datasheet_of(device, measured_ceilings.ceilings(device))
    scripts = repository(capabilities.precision(device))
    to_record = {*scripts.group("ladder").scripts, *pieces.FASTEST}

    # Record first: a process that has used a GPU cannot fork.
    recorded = {}
    for seq_len in {seq_len for _, seq_len in scripts_by_shape}:
        args = forecast_plan.settings(values | {"seq_len": seq_len}, device)
        techniques = [script for script in scripts if script.name in to_record]
        groups = forecast_plan.recordings(techniques, args, with_single=False)
        names = [technique.name for technique in techniques]
        recorded[seq_len] = args, dict(zip(names, groups, strict=True))

    result = []
    for (batch_size, seq_len), names in scripts_by_shape.items():
        args, recordings = recorded[seq_len]
        for name in sorted(names):
            technique = scripts.get(name)
            seconds = None
            reason = ""
            if entry and entry.key in datasheets.datasheets():
                reason = forecast_plan.unsupported(technique, entry, args)
            if name in to_record and not reason:
                memory = forecast_plan.memory_forecast(recordings[name], batch_size, budget, device)
                step = forecast_plan.step_forecast(technique, memory, args, entry)
                seconds = step.time.ends if step.time else None
                if memory.peak > budget:
                    reason = f"needs {memory.peak / GIB:.1f} of {budget / GIB:.1f} GiB"
            shape = [batch_size, seq_len]
            result.append({"script": name, "shape": shape, "seconds": seconds, "reason": reason})
    return result
