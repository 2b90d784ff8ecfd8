"""Generated parts of README.md and docs/, and their pictures.

Imports the core and tools/forecast; only tools/site imports it.
"""
