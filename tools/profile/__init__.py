"""Time of a step by kind of work, with advice.

Imports the core but for commands, tools/forecast and tools/own_script.
"""
