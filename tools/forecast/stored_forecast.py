"""The forecasts of docs/forecast.csv, which `make expectations` writes. It imports no torch."""

from Utils.base import paths

FILE = paths.ROOT / "docs" / "forecast.csv"
