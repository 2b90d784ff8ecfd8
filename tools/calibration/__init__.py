"""Constants of the forecast, and what they and other claims are measured by.

Imports the core and tools/forecast; only tests import it.
"""
