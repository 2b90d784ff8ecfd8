"""Write docs/forecast.csv and docs/hours.csv: what to expect of GPUs that are not here.

forecast.csv has the ladder; each device has the largest shape of 1024 tokens at which the baseline
fits. hours.csv has the hours of a pretraining on each device of the table. Every figure is a
forecast with a range of 90%.
"""

import pandas as pd

from Utils.base import paths
from Utils.base.command_line import Parser
from Utils.forecast import forecast_table

DOCS = paths.ROOT / "docs"


def main(argv=None):
    Parser("expectations", __doc__).parse_args(argv)
    rows = list(forecast_table.ladder_rows())
    hours = list(forecast_table.pretraining_hours(DOCS / "prices.toml"))
    for name, lines in (("forecast", rows), ("hours", hours)):
        pd.DataFrame(lines, dtype=object).to_csv(DOCS / f"{name}.csv", index=False)
    print("docs/forecast.csv and docs/hours.csv are written; `make readme` draws docs/gpus.png")
