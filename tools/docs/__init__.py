"""Generated parts of README.md and docs/, and docs/gpus.png.

Imports the core and tools that forecast; nothing but tools/site imports it.
"""
