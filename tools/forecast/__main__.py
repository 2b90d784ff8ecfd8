"""Forecast peak memory and step time, on this device or one that is not here.

A step of the real script runs on fake tensors, which have no memory. Its allocations and operations
are recorded. DEVICE may be a key of the table of datasheets. Rows of RESULTS_FILE on that device
are shown beside their forecasts.
"""

import re

from tools.forecast import forecast_plan, forecast_table
from Utils.base.command_line import LARGEST, RUN_SETTINGS, Parser, spelled
from Utils.base.errors import UserError, run_command
from Utils.base.units import GIB, MIB
from Utils.device import capabilities, datasheets, device_choice
from Utils.device.cpu import CPU
from Utils.scripts import ladder

SETTINGS = (*RUN_SETTINGS, "t", "memory")
UNITS = {"": 1, "mb": 10**6, "mib": MIB, "gb": 10**9, "gib": GIB}


def main(*words):
    args = Parser("forecast", __doc__, *SETTINGS).parse_args(words)
    names = ["ladder"] if args.t in ("", "all") else args.t.split()
    memory = memory_size(args.memory) if args.memory else None
    args = forecast_plan.settings_of(args, memory)
    device = args.hardware
    memory = memory or device.memory_bytes
    budget = device_choice.usable_bytes(memory)
    entry = datasheets.datasheet_for(device.name)

    # Heading
    shape = f"{args.batch_size}x{args.seq_len} tokens a step"
    usable = (
        f"GiB (2^30 bytes), {forecast_table.gib(budget)} usable of {forecast_table.gib(memory)}"
    )
    print(f"Estimates for {device.name}: {args.model}, {shape}, {usable}")
    on_cpu = isinstance(device, CPU)
    if on_cpu:
        print("Memory of tensors; the process adds its libraries and what malloc keeps.")
    precision = capabilities.precision(device)
    if precision != "bfloat16":
        print(ladder.PRECISIONS[precision].message)

    # Table
    techniques = forecast_plan.techniques_of(names, ladder.repository(precision))
    forecasts = forecast_plan.forecasts_on_device(techniques, args, budget)
    if entry and any(forecast.time for forecast in forecasts):
        print(f"Time from {entry.source}.")
    print("In brackets: 90% ranges.\n")
    print(forecast_table.technique_table(forecasts, args.base))

    # Measurements
    measured = forecast_table.measured_lines(forecasts, args, not on_cpu)
    if measured:
        print("", *measured, sep="\n")
    if entry is None:
        keys = ", ".join(datasheets.datasheets())
        print(f"\nNo forecast of time without a datasheet; DEVICE= knows {keys}")
    elif any(forecast.time and forecast.time.factor > 1 for forecast in forecasts):
        print("\nRanges are wider for chips and precisions without published figures.")


def memory_size(text):
    """Return the bytes of "10GiB", "24 GB" or "8e9". Raises UserError."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    size = float(match[1]) * UNITS.get(match[2], 0) if match else 0
    if not 1 <= size < LARGEST:
        remedy = "give it as 10GiB (2^30), 10GB (10^9) or 1e10, in bytes"
        raise UserError(f"{spelled('memory', text)}: not a size", remedy)
    return int(size)


if __name__ == "__main__":
    run_command("forecast", main)
