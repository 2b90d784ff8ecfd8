"""What taking turns changes, and what it buys: a script and a copy of it, alone and in turns.

    python -m tests.turns_against_alone [--rounds 8] [flags of the scripts]

In each round the baseline and its copy run one after the other, and in turns, every other round in
the other order. Prints the ratio (in turns / alone) of step time, peak memory and waiting for data;
and, for either design, the ratio of the two copies with its interval and the minutes it took. For
docs/METHOD.md.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from tests.known import changed, copy_project
from Utils.analysis import intervals
from Utils.base import command_line, paths
from Utils.base.command_line import Parser
from Utils.results import rows_file


def main(argv):
    parser = Parser("turns_against_alone", __doc__)
    command_line.add_settings(parser)
    parser.set_defaults(steps=25, rounds=8)
    args = parser.parse_args(argv)
    logs = {"step time": [], "peak memory": [], "waiting for data": []}
    copies, minutes = {"alone": [], "turns": []}, {"alone": 0.0, "turns": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder), "no_optimization")
        (project / "the_same.py").write_text(changed())
        for r in range(args.rounds):
            found = {}
            for design in copies if r % 2 == 0 else reversed(copies):
                begun = time.monotonic()
                found[design] = measure(project, design, args, r)
                minutes[design] += (time.monotonic() - begun) / 60
                copies[design].append(
                    found[design].step_ms["the_same"] / found[design].step_ms["no_optimization"]
                )
            ratio = found["turns"].loc["no_optimization"] / found["alone"].loc["no_optimization"]
            for name, column in zip(logs, ("step_ms", "peak_memory_mib", "data_ms"), strict=True):
                logs[name].append(ratio[column])
            said = (f"{name} {ratios[-1]:.3f}" for name, ratios in (logs | copies).items())
            print(r, *said, flush=True)
    for name, ratios in logs.items():
        print(f"{name}, in turns / alone: {interval(ratios)[0]}")
    for design, ratios in copies.items():
        text, half_width = interval(ratios)
        print(f"copy / itself, {design}: {text}, {half_width:.1%} in {minutes[design]:.1f} minutes")


def interval(ratios):
    """Return (a ratio's mean and interval as text, half its width on the log scale)."""
    mean, low, high = intervals.drift_free(pd.Series(np.log(ratios)))
    return "{:.3f}x ({:.3f}-{:.3f})".format(*np.exp([mean, low, high])), (high - low) / 2


def measure(project, design, args, r):
    """Return the medians of both scripts' timed steps, a DataFrame by technique."""
    path = project / f"{design}-{r}.csv"
    names = ["no_optimization", "the_same"][:: 1 if r % 2 == 0 else -1]
    flags = command_line.round_flags(args, r, results_file=path)
    environment = paths.environment(CACHE_DIR=str(paths.CACHE), PYTHONPATH=str(project))
    for together in [names] if design == "turns" else [[name] for name in names]:
        command = [sys.executable, "-m", "Utils.commands.suite", *together, *flags]
        subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    rows = rows_file.read(path)
    rows = rows[rows.phase == "timed"]
    return rows.groupby("technique")[["step_ms", "peak_memory_mib", "data_ms"]].median()


if __name__ == "__main__":
    main(sys.argv[1:])
