"""Write docs/kernels.csv: the forecast of the fastest script on an H100, kernel by kernel.

    python -m tools.calibration.kernel_table

A row has the kernels of one kind, or products of one shape: their number, FLOP and bytes, the time,
what bounds it, and the shares of the datasheet's peaks. The last row is the step. at_peak_ms is the
time of its kernels at those peaks, one after the other.
"""

import numpy as np
import pandas as pd

from tools.forecast import forecast_plan, gpus, step_time
from tools.forecast.kernel_kinds import KINDS
from tools.forecast.kernel_work import MATMUL, TYPES
from Utils.base import paths
from Utils.scripts import ladder

FILE = paths.ROOT / "docs" / "kernels.csv"
SCRIPT = "all_together_float8"
CARD = "h100"
BATCH = 16
LENGTH = 1024


def main():
    # The kernels of the script's step
    entry = gpus.datasheet_by_key(CARD)
    values = {"model": "gpt2", "dataset": "synthetic", "device": "cuda", "seq_len": LENGTH}
    device = forecast_plan.forecast_device(CARD)
    settings = forecast_plan.settings(values | {"batch_size": BATCH}, device)
    (recording,) = forecast_plan.recordings([ladder.get(SCRIPT)], settings, with_single=False)
    step = forecast_plan.memory_forecast(recording, BATCH, entry.memory_bytes, device).kernels

    rows = table(step, entry).assign(tokens=BATCH * LENGTH)
    rows.to_csv(FILE, index=False, float_format="%.4g")


def table(step, entry):
    """Return the table of StepKernels on the GPU of a Datasheet."""
    # Seconds forecast, and at the peaks of arithmetic and of memory
    kernels = step.kernels
    seconds, _ = step_time.kernel_seconds(step, entry, step_time.constants())
    peaks = 1e12 * np.array([entry.peak(name) for name in TYPES[:-1]] + [2 * entry.bfloat16])
    flop_s = kernels.flop / peaks[kernels.type]
    byte_s = kernels.traffic / (1e9 * entry.bandwidth)

    # Kinds, and products by shape
    names = [KINDS[kind] for kind in kernels.kind]
    for i in np.flatnonzero(kernels.family == MATMUL):
        names[i] += " {}x{}x{}".format(*np.sort([kernels.m[i], kernels.n[i], kernels.k[i]])[::-1])

    # Sums by kind, in the order of their times
    figures = {
        "kernels": kernels.launches,
        "tflop": kernels.flop / 1e12,
        "gb": kernels.traffic / 1e9,
        "ms": 1e3 * seconds,
        "flop_ms": 1e3 * flop_s,
        "byte_ms": 1e3 * byte_s,
        "at_peak_ms": 1e3 * np.maximum(flop_s, byte_s),
    }
    launched = pd.DataFrame(figures).iloc[step.order].assign(kind=np.array(names)[step.order])
    rows = launched.groupby("kind").sum().sort_values("ms", ascending=False)
    rows = pd.concat([rows[rows.ms > 0], rows.sum().to_frame("the step").T])

    # What bounds each kind, and its shares of the peaks
    rows["bound"] = np.where(rows.flop_ms > rows.byte_ms, "compute", "memory")
    rows.loc["the step", "bound"] = ""
    rows["of_peak_flop"] = rows.flop_ms / rows.ms
    rows["of_peak_bytes"] = rows.byte_ms / rows.ms
    rows = rows.drop(columns=["flop_ms", "byte_ms"]).rename_axis("kind").reset_index()
    return rows.astype({"kernels": int})


if __name__ == "__main__":
    main()
