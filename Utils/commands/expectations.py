"""Write docs/forecast.csv and docs/hours.csv: what to expect of GPUs that are not here.

forecast.csv has each model of GPT-2 on each device of the table, at several batches of 1024 tokens
that fit: the ladder, what puts it together and what saves memory. hours.csv has the hours of a
pretraining on each device. Every figure is a forecast with a range of 90%.
"""

import pandas as pd

from Utils.base import paths
from Utils.base.gpt2_sizes import CONFIGS
from Utils.forecast import forecast_table

DOCS = paths.ROOT / "docs"
COLUMNS = ["device", "model", "technique", "batch_size", "seq_len", "forecast_ms", "low_ms"]
COLUMNS += ["high_ms", "speedup", "speedup_low", "speedup_high", "tokens_per_second", "peak_gib"]
COLUMNS += ["largest_batch", "mostly", "reason"]


def main(args):
    rows = []
    for model in CONFIGS:
        rows += forecast_table.expected_rows(model)
        print(f"{model}: forecast", flush=True)
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    hours = pd.DataFrame(forecast_table.pretraining_hours(DOCS / "prices.toml"), dtype=object)
    for name, lines in (("forecast", table), ("hours", hours)):
        lines.to_csv(DOCS / f"{name}.csv", index=False)
    print("docs/forecast.csv and docs/hours.csv are written; `make readme` draws docs/gpus.png")
