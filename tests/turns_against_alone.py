"""Whether taking turns changes what is measured: a script alone and in turns with a copy of itself.

    python -m tests.turns_against_alone [--rounds 8] [flags of the scripts]

In each round the baseline runs by itself and in turns, every other round in the other order, so
their ratios have the interval of any comparison. Prints the ratio (in turns / alone) of step time,
peak memory and waiting for data, and that of the two copies in turns, for docs/METHOD.md.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from tests.known import changed, copy_project
from Utils.analysis import intervals
from Utils.base import command_line, paths, results
from Utils.base.command_line import Parser


def main(argv):
    parser = Parser("turns_against_alone", __doc__)
    command_line.add_settings(parser)
    parser.set_defaults(steps=25, rounds=8)
    args = parser.parse_args(argv)
    logs = {"step time": [], "peak memory": [], "waiting for data": [], "copy in turns": []}
    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder), "no_optimization")
        (project / "the_same.py").write_text(changed())
        for r in range(args.rounds):
            found = {}
            for names in (["alone"], ["turns"])[:: 1 if r % 2 == 0 else -1]:
                found[names[0]] = measure(project, names[0], args, r)
            alone, turns = found["alone"].iloc[0], found["turns"].loc["no_optimization"]
            same = found["turns"].loc["the_same"]
            logs["step time"].append(turns.step_ms / alone.step_ms)
            logs["peak memory"].append(turns.peak_memory_mib / alone.peak_memory_mib)
            logs["waiting for data"].append(turns.data_ms / alone.data_ms)
            logs["copy in turns"].append(same.step_ms / turns.step_ms)
            print(r, *(f"{name} {ratios[-1]:.3f}" for name, ratios in logs.items()), flush=True)
    for name, ratios in logs.items():
        mean, low, high = np.exp(intervals.drift_free(pd.Series(np.log(ratios))))
        print(f"{name}: {mean:.3f}x ({low:.3f}-{high:.3f})")


def measure(project, way, args, r):
    """Return the medians of each script's timed steps, a DataFrame by technique."""
    path = project / f"{way}-{r}.csv"
    names = ["no_optimization"] + (["the_same"] if way == "turns" else [])
    flags = command_line.round_flags(args, r, results_file=path)
    command = [sys.executable, "-m", "Utils.commands.suite", *names, *flags]
    environment = paths.environment(CACHE_DIR=str(paths.CACHE), PYTHONPATH=str(project))
    subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True)
    rows = results.read(path)
    rows = rows[rows.phase == "timed"]
    return rows.groupby("technique")[["step_ms", "peak_memory_mib", "data_ms"]].median()


if __name__ == "__main__":
    main(sys.argv[1:])
