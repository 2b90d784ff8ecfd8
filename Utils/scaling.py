"""What more GPUs bring: strong scaling, the same batch dealt out to more of them, and weak scaling,
the same batch for each.

    python -m Utils.scaling [NAME] --gpus "1 2 4 8" [flags of the scripts]

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

import pandas as pd
from tabulate import tabulate

from Utils import charts, hardware, ladder, launch, results, settings, suite, summary
from Utils.config import CONFIGS
from Utils.errors import UserError, one_line

KINDS = {"strong": "the same batch for all together", "weak": "the same batch for each"}
COLOURS = {"strong": "C0", "weak": "C1"}
ASIDE = {"strong": (8, -14), "weak": (-8, 10)}  # points, of what stands beside one of its points


def main(argv=None):
    """Runs, then prints the table and draws the chart. Returns the exit code: 0, or 1 where a run
    failed, or 2 where the settings are not possible."""
    parser = settings.Parser("scaling", __doc__)
    settings.add_settings(parser)
    help = f"a technique; else {launch.DEFAULT}"
    parser.add_argument("name", nargs="?", default="", help=help)
    parser.add_argument("--gpus", default="", help="numbers of processes, as in '1 2 4'")
    args = parser.parse_args(argv)
    technique = ladder.get(args.name or launch.DEFAULT)
    counts = sorted({*launch.counts(args.gpus or "1 all", args.device)})
    if len(counts) < 2:
        raise UserError(f"GPUS={args.gpus}: one number of processes has nothing to compare with")
    results.check(args.results_file)
    plan = shapes(counts, batch(args, counts))
    name, codes = f"{time.time_ns():x}", []
    # On a CPU a process stands for a device: as many cores each, however many there are.
    threads = max(1, hardware.available("cpu")[0] // counts[-1])
    for r in range(args.round, args.round + args.rounds):
        for n, size in plan if r % 2 == 0 else plan[::-1]:
            command = [*technique.command, *launch.flags(args, r, batch_size=size)]
            with patch.dict(os.environ, SUITE=name):
                codes.append(launch.launch(technique.name, command, n, threads))
            if codes[-1] in (2, 130):
                return codes[-1]
    ours = suite._runs_of(name, args.results_file)
    if ours:
        rows = results.read(args.results_file)
        rows = rows[rows.run_id.isin(ours) & (rows.status == "ok")]
    if not ours or rows.empty:
        raise UserError("no run has timings: there is nothing to compare")
    found = efficiencies(rows, plan, counts)
    print(f"\n{table(found)}\n\n{described(rows)}\n\n{sentence(found)}")
    charts.save(draw(found, described(rows)), f"{args.plotsprefix}scaling")
    return 1 if any(codes) else 0


def batch(args, counts):
    """The global batch of strong scaling: what was asked for, or the largest that one process takes
    alone and each of the counts can share evenly; where that is none, the least they can share."""
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
    device = hardware.choose(args.device)
    alone = hardware.auto_shape(device, config, config.parameters(), seq_len=length)[0]
    evenly = math.lcm(*counts)
    return max(1, alone // evenly) * evenly


def shapes(counts, size):
    """The runs of a round, as (processes, global batch): both kinds, each of them once."""
    each = size // min(counts)
    return list(dict.fromkeys([*((n, size) for n in counts), *((n, n * each) for n in counts)]))


def efficiencies(rows, plan, counts):
    """One line a kind of scaling and number of processes, a DataFrame: scaling, processes,
    batch_size, median_ms, tokens_per_second; speedup, speedup_low and speedup_high in tokens per
    second over the fewest processes, efficiency, efficiency_low and efficiency_high as shares of
    the ideal. NaN where there is no interval.

    rows: of the runs in `plan`, of `shapes`, that have timings.
    """
    timed, size = rows[rows.phase == "timed"], min(size for _, size in plan)
    medians = timed.groupby(["world_size", "batch_size", "round"]).step_ms.median()
    lines = []
    for kind in KINDS:
        reference = None
        for n in counts:
            B = size if kind == "strong" else n * (size // min(counts))
            if (n, B) not in medians:
                continue
            own = medians[n, B]
            own_ms = timed[(timed.world_size == n) & (timed.batch_size == B)].step_ms.median()
            line = {"scaling": kind, "processes": n, "batch_size": B, "median_ms": own_ms}
            line["tokens_per_second"] = B * rows.seq_len.iloc[0] / own_ms * 1e3
            reference = (n, B, own) if reference is None else reference
            fewest, fewest_B, fewest_ms = reference
            more = B / fewest_B  # tokens
            ratio = summary.speedup(fewest_ms, own)
            for part in ("", "_low", "_high"):
                value = ratio.get(f"speedup{part}", math.nan) * more
                line[f"speedup{part}"] = value
                line[f"efficiency{part}"] = value * fewest / n
            lines.append(line)
    return pd.DataFrame(lines)


def table(found):
    """The lines of `efficiencies` as GitHub-markdown."""
    shown = {
        "scaling": found.scaling,
        "processes": found.processes,
        "global batch": found.batch_size,
        "median step (ms)": found.median_ms.map("{:,.1f}".format),
        "tokens/s": found.tokens_per_second.map("{:,.0f}".format),
        "speedup in tokens/s": [_ratio(line, "speedup", "{:.2f}x") for line in found.itertuples()],
        "efficiency": [_ratio(line, "efficiency", "{:.0%}") for line in found.itertuples()],
    }
    align = ["left", *["right"] * (len(shown) - 1)]
    return tabulate(shown, "keys", "github", disable_numparse=True, colalign=align)


def _ratio(line, name, form):
    value, low, high = (getattr(line, f"{name}{part}") for part in ("", "_low", "_high"))
    no_interval = math.isnan(low) or low == high  # which is the reference itself
    interval = "" if no_interval else f" ({form.format(low)} to {form.format(high)})"
    return form.format(value) + interval


def sentence(found):
    """What the most processes bring, of either kind, and whether that can be told from nothing."""
    lines = []
    for kind, what in KINDS.items():
        own = found[found.scaling == kind]
        if len(own) < 2:
            continue
        first, last = own.iloc[0], own.iloc[-1]
        text = (
            f"{kind} scaling, {what}: {last.processes} processes do {last.speedup:.2f} times the "
        )
        text += f"tokens per second of {first.processes}, {last.efficiency:.0%} of the ideal"
        if math.isnan(last.speedup_low):
            lines.append(f"{text}; {summary.NO_INTERVAL}.")
        else:
            verdict = "no faster, as far as this shows"
            if last.speedup_low > 1:
                verdict = "faster"
            elif last.speedup_high < 1:
                verdict = "slower"
            low, high = last.efficiency_low, last.efficiency_high
            lines.append(f"{text} ({low:.0%} to {high:.0%}): {verdict}.")
    return "\n".join(lines)


def described(rows):
    """What the runs have in common, in one line."""
    first, rounds = rows.iloc[0], rows["round"].nunique()
    return (
        f"{first.technique} on {first.device}, torch {first.torch}, {first.model}, sequences of "
        f"{first.seq_len} tokens, {first.dataset}, {rounds} round{'s' * (rounds > 1)}, commit "
        f"{first.commit or 'unknown'}"
    )


def draw(found, words):
    """Tokens per second over those of the fewest processes, a line a kind, with the ideal one."""
    figure, axes = charts.figure(5.5, "What more processes bring", words)
    counts = sorted(found.processes.unique())
    ideal = [n / counts[0] for n in counts]
    axes.plot(counts, ideal, color=charts.GREY, linestyle="--", label="ideal")
    for kind, what in KINDS.items():
        own = found[found.scaling == kind]
        if own.empty:
            continue
        errors = [own.speedup - own.speedup_low, own.speedup_high - own.speedup]
        errors = [side.fillna(0.0) for side in errors]
        how = {"color": COLOURS[kind], "marker": "o", "capsize": 4, "label": f"{kind}: {what}"}
        axes.errorbar(own.processes, own.speedup, yerr=errors, **how)
        for line in own.iloc[1:].itertuples():
            x, y = ASIDE[kind]
            where = {"xytext": (x, y), "textcoords": "offset points"}
            where["ha"] = "left" if x > 0 else "right"
            place, how = (line.processes, line.speedup), {"color": COLOURS[kind], **where}
            axes.annotate(f"{line.efficiency:.0%}", place, fontsize="small", **how)
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.1 * counts[-1], counts[-1] * 1.1)
    axes.set_ylim(0, 1.4 * ideal[-1])  # an interval of few rounds can be longer than the chart
    axes.set_xlabel("processes (beside each point: its efficiency; bars: 95% over rounds)")
    axes.set_ylabel("tokens per second, over the fewest processes'")
    axes.legend(loc="upper left", frameon=False)
    return figure


if __name__ == "__main__":
    with one_line("scaling"):
        sys.exit(main())
