"""Generated parts of README.md and docs/, and docs/gpus.png.

Imports the core and tools/forecast; only tools/site imports it.
"""
