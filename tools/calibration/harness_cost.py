"""Cost of the harness itself, and a check of its clock, printed for docs/METHOD.md.

python -m tools.calibration.harness_cost [flags of the scripts]
"""

import sys
import tempfile
import time
from itertools import count, pairwise
from pathlib import Path
from unittest.mock import patch

import torch

import no_optimization
from Utils.data import TokenBatches
from Utils.harness.settings import parse_args
from Utils.results import rows_file
from Utils.run import Run


class StopwatchBatches(TokenBatches):
    """Batches that note the time of each request, by another clock than the harness's."""

    def __iter__(self):
        self.asked = []
        for step in count():
            self.asked.append(time.monotonic())  # before the batch is drawn: next to the boundary
            yield self[step]


def stopwatch_steps(args):
    """Return (rows, milliseconds by a stopwatch) of a run of the baseline.

    Only the rows have the last step, as no batch is requested after it.
    """
    batches = StopwatchBatches(args)
    with patch.object(no_optimization, "TokenBatches", lambda args: batches):
        no_optimization.main(args)

    rows = rows_file.read(args.results_file)
    return rows, [(end - start) * 1e3 for start, end in pairwise(batches.asked)]


def main(flags):
    with tempfile.TemporaryDirectory() as folder:

        def args(name, *more):
            file = ["--results-file", str(Path(folder) / f"{name}.csv")]
            return parse_args("", [*flags, *file, *more], "no_optimization")

        # Steps that do nothing, so that they are harness and batch
        empty = args("empty", "--steps", "2000")
        with Run(empty, torch.nn.Identity(), None) as run:
            for _ in run.steps(TokenBatches(empty)):
                run.log(1.0)
        rows = rows_file.read(empty.results_file)
        timed = rows[rows.phase == "timed"]
        empty_us = (timed.step_ms - timed.data_ms).mean() * 1e3
        batch_us = timed.data_ms.mean() * 1e3

        # Steps of the baseline, by two clocks
        rows, stopwatch = stopwatch_steps(args("stopwatch"))
        steps = rows.step_ms[:-1].sum()

    print(f"an empty step: {empty_us:.0f} us, and {batch_us:.0f} us for its batch")
    print(f"{len(stopwatch)} steps of the baseline: {steps:,.1f} ms by the harness, ", end="")
    print(f"{sum(stopwatch):,.1f} ms by the stopwatch, {steps / sum(stopwatch) - 1:+.4%}")


if __name__ == "__main__":
    main(sys.argv[1:])
