"""Measure strong scaling (one batch shared by more GPUs) and weak (the same batch for each).

Each round runs every number of processes once with seed SEED + r, every other round in reverse
order. BATCH_SIZE is the batch of strong scaling; weak scaling gives each process its share at the
fewest processes, where both are the same run. Efficiency is the speedup over the fewest processes
as a share of the ideal one, paired within rounds, with Student's t interval.
"""

import math
import time

from tools.scaling import efficiency
from Utils.base.command_line import ALL_SCRIPT_SETTINGS, Parser, check, spelled
from Utils.base.errors import UserError, run_command
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import device_choice
from Utils.launch import rank_launcher, suite_runner
from Utils.results import rows_file, selection
from Utils.scripts import ladder


def main(*words):
    """Return the exit code: 0; 1 if a run failed; 2 for impossible settings."""
    parser = Parser("scaling", __doc__, *ALL_SCRIPT_SETTINGS, "t", "gpus")
    args = parser.parse_args(words)
    check(args)
    technique = ladder.get(args.t or rank_launcher.DEFAULT)
    counts = sorted({*rank_launcher.counts(args.gpus or "1 all", args.device)})
    if len(counts) < 2:
        raise UserError(f"GPUS={args.gpus}: nothing to compare with", "give two numbers or more")
    rows_file.check(args.results_file)

    size = batch(args, counts)
    strong, weak = efficiency.batches_by_kind(counts, size).values()
    plan = list(dict.fromkeys([*strong.items(), *weak.items()]))  # both have the fewest processes
    suite = f"{time.time_ns():x}"
    # On a CPU a process stands for a device: always with the same number of cores.
    threads = max(1, device_choice.available("cpu")[0] // counts[-1])

    # Run each round, every other one in reverse order.
    codes = []
    for r in range(args.round, args.round + args.rounds):
        for count, batch_size in plan if r % 2 == 0 else plan[::-1]:
            command = rank_launcher.command(technique, args, r, batch_size=batch_size)
            code = rank_launcher.launch(technique.name, command, count, threads, SUITE_ID=suite)
            if code in (2, 130):
                return code
            codes.append(code)

    rows, _ = suite_runner.rows_of(suite, args.results_file)
    rows = rows[rows.status == "ok"].sort_values("batch_size")  # strong scaling first
    if rows.empty:
        raise UserError("no run has timings: there is nothing to compare")
    figures = efficiency.efficiencies(rows, counts, size)
    described = f"{technique.name} on {selection.description(rows)}"
    print(f"\n{efficiency.table(figures, described)}")
    return 1 if any(codes) else 0


def batch(args, counts):
    """Return the global batch of strong scaling.

    It is the requested one, otherwise the largest that fits one process and that all counts share
    evenly. If none fits, it is the smallest that they share evenly.
    """
    evenly = math.lcm(*counts)
    if args.batch_size != "auto":
        for count in counts:
            if args.batch_size % count:
                setting = spelled("batch_size", args.batch_size)
                problem = f"{setting}: {count} processes cannot share it evenly"
                raise UserError(problem, f"try {spelled('batch_size', evenly)}")
        return args.batch_size

    device = device_choice.choose(args.device)
    alone = device_choice.auto_shape(device, CONFIGS[args.model], seq_len=args.seq_len)[0]
    return max(1, alone // evenly) * evenly


if __name__ == "__main__":
    run_command("scaling", main)
