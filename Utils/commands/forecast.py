"""Forecast the peak memory of a technique before it runs, on a device that need not be here.

    python -m Utils.commands.forecast [TECHNIQUE ... | ladder | everything] [--memory 24GiB] [flags]

`fakes` makes a step of the real script on tensors that have no memory, and records what it would
allocate. All of it is an estimate, and is labelled so.
"""

import sys
from itertools import takewhile
from unittest.mock import patch

from Utils.base import command_line, errors, ladder
from Utils.base.command_line import Parser
from Utils.device import shapes
from Utils.device.cpu import CPU
from Utils.diagnose import forecast, forecast_text
from Utils.diagnose.forecast_text import gib
from Utils.harness.settings import parse_args


def main(argv):
    names = list(takewhile(lambda word: not word.startswith("-"), argv))
    parser = Parser("forecast", __doc__)
    command_line.add_settings(parser)
    help = "of the device: 24GiB, 24GB (10^9) or bytes; else what it has"
    parser.add_argument("--memory", default="", help=help)
    given = vars(parser.parse_args(argv[len(names) :]))
    memory = forecast.size(given.pop("memory")) if given["memory"] else given.pop("memory") or None
    chosen = []
    for name in names or ["ladder"]:
        chosen += [t for t in ladder.group(name) or [ladder.get(name)] if t not in chosen]

    device = forecast.device_of(given["device"], memory)
    given |= {"rounds": 1, "round": 0}
    flags = command_line.as_flags(given)
    with patch("Utils.device.devices.choose", lambda wanted, *ranks: device):
        args = parse_args("", flags, "forecast")
    flags += [f"--seq-len={args.seq_len}"]
    memory = memory or device.memory_bytes
    budget = shapes.usable_bytes(memory)
    print(
        f"Estimates for {device.name}: {args.model}, {args.batch_size}x{args.seq_len} tokens a "
        f"step, GiB (2^30 bytes), {gib(budget)} usable of {gib(memory)}"
    )
    if isinstance(device, CPU):
        print("Memory of tensors; the process adds its libraries and what malloc keeps.")
    print()
    others = []
    if "ladder" in (names or ["ladder"]):  # for the advice, those that gain memory first of all
        known = ladder.techniques().values()
        others = [t for t in known if t not in chosen and "memory" in t.facts.gains[:1]]
    found = forecast.forecasts([*chosen, *others], flags, device, args, budget)
    print(forecast_text.table(found, forecast.measured(args), budget))
    print(*["", *forecast_text.advice(found, args, budget)], sep="\n")


if __name__ == "__main__":
    with errors.one_line("forecast"):
        main(sys.argv[1:])
