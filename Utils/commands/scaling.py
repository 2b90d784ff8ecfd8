"""Measure strong scaling (one batch shared by more GPUs) and weak (the same batch for each).

    python -m Utils.commands.scaling [NAME] --gpus "1 2 4 8" [flags of the scripts]

Each round runs every number of processes once with seed SEED + r, every other round in reverse
order. BATCH_SIZE is the batch of strong scaling; weak scaling gives each process its share at the
fewest processes, where both are the same run. Efficiency is the speedup over the fewest processes
as a share of the ideal one, paired within rounds, with Student's t interval.
"""

import math
import os
import sys
import time
from unittest.mock import patch

from Utils.analysis import scaling_efficiency
from Utils.base import command_line
from Utils.base.errors import UserError, one_line
from Utils.base.gpt2_sizes import CONFIGS
from Utils.device import auto_shape, device_choice
from Utils.draw import chart_style, scaling_chart
from Utils.launch import rank_launcher, suite_runner
from Utils.launch.rank_launcher import DEFAULT
from Utils.results import rows_file
from Utils.scripts import ladder


def main(argv=None):
    """Run, print the table and draw the chart.

    Return the exit code: 0; 1 where a run failed; 2 for impossible settings.
    """
    parser = command_line.Parser("scaling", __doc__)
    command_line.add_settings(parser)
    command_line.add_extra(parser, "bucket_mb")
    command_line.add_plotsprefix(parser)
    parser.add_argument("name", nargs="?", default="", help=f"a technique; else {DEFAULT}")
    parser.add_argument("--gpus", default="", help="numbers of processes, as in '1 2 4'")
    args = parser.parse_args(argv)
    technique = ladder.get(args.name or DEFAULT)
    counts = sorted({*rank_launcher.counts(args.gpus or "1 all", args.device)})
    if len(counts) < 2:
        raise UserError(f"GPUS={args.gpus}: nothing to compare with", "give two numbers or more")
    rows_file.check(args.results_file)
    plan = scaling_efficiency.shapes(counts, batch(args, counts))
    name, codes = f"{time.time_ns():x}", []
    # On a CPU a process stands for a device: always with the same number of cores.
    threads = max(1, device_choice.available("cpu")[0] // counts[-1])
    for r in range(args.round, args.round + args.rounds):
        for n, size in plan if r % 2 == 0 else plan[::-1]:
            command = rank_launcher.command(technique, args, r, batch_size=size)
            with patch.dict(os.environ, SUITE=name):
                codes.append(rank_launcher.launch(technique.name, command, n, threads))
            if codes[-1] in (2, 130):
                return codes[-1]
    run_ids = suite_runner.runs_of(name, args.results_file)
    if run_ids:
        rows = rows_file.read(args.results_file)
        rows = rows[rows.run_id.isin(run_ids) & (rows.status == "ok")]
    if not run_ids or rows.empty:
        raise UserError("no run has timings: there is nothing to compare")
    found, described = (
        scaling_efficiency.efficiencies(rows, plan, counts),
        scaling_efficiency.described(rows),
    )
    print(
        "",
        scaling_efficiency.table(found),
        "",
        described,
        "",
        scaling_efficiency.sentence(found),
        sep="\n",
    )
    chart_style.save(scaling_chart.draw(found, described), f"{args.plotsprefix}scaling")
    return 1 if any(codes) else 0


def batch(args, counts):
    """Return the global batch of strong scaling.

    As requested, or the largest that fits one process and all counts share evenly, or else the
    smallest that they share evenly.
    """
    if args.batch_size != "auto":
        for n in counts:
            if args.batch_size % n:
                problem = f"--batch-size {args.batch_size}: {n} processes cannot share it evenly"
                raise UserError(problem, f"try --batch-size {math.lcm(*counts)}")
        return args.batch_size
    if args.model not in CONFIGS:
        raise UserError(f"--model {args.model}: choose {', '.join(CONFIGS)}")
    config, length = CONFIGS[args.model], None if args.seq_len == "auto" else args.seq_len
    device = device_choice.choose(args.device)
    alone = auto_shape.auto_shape(device, config, config.parameters(), seq_len=length)[0]
    evenly = math.lcm(*counts)
    return max(1, alone // evenly) * evenly


if __name__ == "__main__":
    with one_line("scaling"):
        sys.exit(main())
