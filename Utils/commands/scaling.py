"""Strong scaling, the same batch shared out to more GPUs, and weak, the same batch for each.

    python -m Utils.commands.scaling [NAME] --gpus "1 2 4 8" [flags of the scripts]

Each round runs every number of processes once with seed SEED + r, and every other round goes
backwards. BATCH_SIZE is the batch of strong scaling; weak scaling gives each process what one has
of it at the fewest processes, where the two are one run. Efficiency is the speedup over the fewest
processes as a share of the ideal one, paired within rounds, with Student's t interval.
"""

import math
import os
import sys
import time
from unittest.mock import patch

from Utils.analysis import scaling
from Utils.base import command_line, errors, ladder, results
from Utils.base.command_line import Parser
from Utils.base.errors import UserError
from Utils.base.sizes import CONFIGS
from Utils.device import devices, shapes
from Utils.draw import scaling_chart, style
from Utils.launch import suite, torchrun
from Utils.launch.torchrun import DEFAULT


def main(argv=None):
    """Run, print the table and draw the chart. Returns the exit code: 0, or 1 where a run
    failed, or 2 where the settings are not possible."""
    parser = Parser("scaling", __doc__)
    command_line.add_settings(parser)
    command_line.add_extra(parser, "bucket_mb")
    command_line.add_plotsprefix(parser)
    help = f"a technique; else {DEFAULT}"
    parser.add_argument("name", nargs="?", default="", help=help)
    parser.add_argument("--gpus", default="", help="numbers of processes, as in '1 2 4'")
    args = parser.parse_args(argv)
    technique = ladder.get(args.name or DEFAULT)
    counts = sorted({*torchrun.counts(args.gpus or "1 all", args.device)})
    if len(counts) < 2:
        raise UserError(f"GPUS={args.gpus}: one number of processes has nothing to compare with")
    results.check(args.results_file)
    plan = scaling.shapes(counts, batch(args, counts))
    name, codes = f"{time.time_ns():x}", []
    # On a CPU a process stands for a device: as many cores each, however many there are.
    threads = max(1, devices.available("cpu")[0] // counts[-1])
    for r in range(args.round, args.round + args.rounds):
        for n, size in plan if r % 2 == 0 else plan[::-1]:
            command = torchrun.command(technique, args, r, batch_size=size)
            with patch.dict(os.environ, SUITE=name):
                codes.append(torchrun.launch(technique.name, command, n, threads))
            if codes[-1] in (2, 130):
                return codes[-1]
    ours = suite.runs_of(name, args.results_file)
    if ours:
        rows = results.read(args.results_file)
        rows = rows[rows.run_id.isin(ours) & (rows.status == "ok")]
    if not ours or rows.empty:
        raise UserError("no run has timings: there is nothing to compare")
    found = scaling.efficiencies(rows, plan, counts)
    print(f"\n{scaling.table(found)}\n\n{scaling.described(rows)}\n\n{scaling.sentence(found)}")
    style.save(scaling_chart.draw(found, scaling.described(rows)), f"{args.plotsprefix}scaling")
    return 1 if any(codes) else 0


def batch(args, counts):
    """Return the global batch of strong scaling: what was asked for, or the largest that one
    process takes alone and all counts share evenly; where there is none, the least they share."""
    if args.batch_size != "auto":
        for n in counts:
            if args.batch_size % n:
                raise UserError(
                    f"--batch-size {args.batch_size}: {n} processes cannot share it evenly; "
                    f"try --batch-size {math.lcm(*counts)}"
                )
        return args.batch_size
    if args.model not in CONFIGS:
        raise UserError(f"--model {args.model}: choose {', '.join(CONFIGS)}")
    config, length = CONFIGS[args.model], None if args.seq_len == "auto" else args.seq_len
    device = devices.choose(args.device)
    alone = shapes.auto_shape(device, config, config.parameters(), seq_len=length)[0]
    evenly = math.lcm(*counts)
    return max(1, alone // evenly) * evenly


if __name__ == "__main__":
    with errors.one_line("scaling"):
        sys.exit(main())
