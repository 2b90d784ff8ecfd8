"""Generated parts of README.md and docs/, and their picture.

Imports the core, tools/forecast and tools/share; only tools/site imports it.
"""
