"""The forecast beside figures of others, and the table of forecasts that pages show.

Imports the core and tools/forecast. `make forecast AGAINST=` and `make expectations` run it.
"""
