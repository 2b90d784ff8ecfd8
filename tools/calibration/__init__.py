"""Constants of the forecast, and what measures other claims.

Imports the core and tools/forecast; only tests import it. `make expectations` and `make forecast
AGAINST=` run two of its modules.
"""
