"""The forecasts of docs/forecast.csv, which `make expectations` writes. It imports no torch."""

import pandas as pd

from Utils.base import paths
from Utils.device import datasheets

FILE = paths.ROOT / "docs" / "forecast.csv"


def step_s(args):
    """Return the forecast seconds of a step by technique, {} for a device or shape without any.

    args: Settings of a run.
    """
    entry = datasheets.datasheet_for(args.hardware.name)
    if not entry or not FILE.exists():
        return {}
    rows = pd.read_csv(FILE).query(
        "device == @entry.key and model == @args.model"
        " and batch_size == @args.batch_size and seq_len == @args.seq_len"
    )
    return (rows.set_index("technique").forecast_ms / 1e3).to_dict()
