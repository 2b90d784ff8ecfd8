"""The forecasts of docs/forecast.csv, which `make expectations` writes. It imports no torch."""

import pandas as pd

from Utils.base import paths
from Utils.device import datasheets

FILE = paths.ROOT / "docs" / "forecast.csv"


def forecasts(device, model, batch_size, seq_len):
    """Return the rows of a device, by its name in torch, at a model and shape: a DataFrame."""
    sheet = datasheets.datasheet_for(device)
    rows = pd.read_csv(FILE)
    is_shape = (rows.batch_size == batch_size) & (rows.seq_len == seq_len)
    is_device = rows.device == (sheet.key if sheet else "")
    return rows[is_device & (rows.model == model) & is_shape]


def step_s(args):
    """Return the forecast seconds of a step by technique, {} for a device or shape without any.

    args: Settings of a run.
    """
    if not FILE.exists():
        return {}
    rows = forecasts(args.hardware.name, args.model, args.batch_size, args.seq_len)
    return (rows.set_index("technique").forecast_ms / 1e3).to_dict()
