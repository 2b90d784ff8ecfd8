"""The forecasts of docs/forecast.csv, which `make expectations` writes. It imports no torch."""

import pandas as pd

from Utils.base import paths
from Utils.device import datasheets

FILE = paths.ROOT / "docs" / "forecast.csv"


def step_s(args):
    """Return the forecast seconds of a step by technique, {} for a device or shape without any.

    args: Settings of a run.
    """
    if not FILE.exists():
        return {}
    sheet = datasheets.datasheet_for(args.hardware.name)
    key = sheet.key if sheet else ""
    is_shape = "model == @args.model and batch_size == @args.batch_size and seq_len == @args.seq_len"
    rows = pd.read_csv(FILE).query(f"device == @key and {is_shape}")
    return (rows.set_index("technique").forecast_ms / 1e3).to_dict()
