"""The device, its shape, and forecasts of the steps that pieces run there.

It imports torch and forks, so that callers use it in a child process.
"""

import torch

from tools.forecast import forecast_plan, gpus
from tools.rented.pieces import FASTEST
from Utils.base.units import GIB
from Utils.corpus import token_cache
from Utils.device import capabilities, device_choice, measured_ceilings
from Utils.device.cpu import CPU
from Utils.harness.settings import SECONDS_ON_GPU
from Utils.scripts.ladder import repository


def conditions(values):
    """Return what decides a plan, a dict: device, torch, precision, and the shape of the ladder.

    values: the settings of a run by name. Raises UserError.
    """
    token_cache.load_tokens(values["dataset"])  # once, before pieces are timed
    device = forecast_plan.forecast_device(values["device"])
    args = forecast_plan.settings(values, device)
    return {
        "device": device.name,
        "torch": torch.__version__,
        "precision": capabilities.precision(device),
        "batch_size": args.batch_size,
        "seq_len": args.seq_len,
        "longest": args.config.block_size,
        "min_seconds": 0.0 if isinstance(device, CPU) else SECONDS_ON_GPU,
    }


def forecasts(values, scripts_by_shape):
    """Return a forecast for each rung and each of FASTEST, by shape: a list of dicts.

    scripts_by_shape: sets of names by (batch size, tokens a sequence). A forecast has the seconds
    of a step with the ends of their range, None without a rule for them, and the reason why the
    script does not run, or "". Other scripts have none, as a recording takes seconds.
    """
    device = forecast_plan.forecast_device(values["device"])
    budget = device_choice.usable_bytes(device.memory_bytes)
    entry = gpus.datasheet_of(device, measured_ceilings.ceilings(device))
    ladder = repository(capabilities.precision(device))
    to_record = {*ladder.group("ladder").scripts, *FASTEST}

    result = []
    for shape, names in scripts_by_shape.items():
        shape_values = dict(zip(("batch_size", "seq_len"), shape, strict=True))
        args = forecast_plan.settings(values | shape_values, device)
        scripts = [script for script in ladder if script.name in names & to_record]
        for step in forecast_plan.forecasts_on_device(scripts, args, entry, budget):
            reason = step.reason
            if step.memory.peak > budget:
                reason = f"needs {step.memory.peak / GIB:.1f} of {budget / GIB:.1f} GiB"
            seconds = step.time.ends if step.time else None
            result.append(
                {"script": step.technique, "shape": shape, "seconds": seconds, "reason": reason}
            )
    return result
