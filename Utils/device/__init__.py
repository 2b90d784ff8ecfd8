"""One device: clock, memory, capabilities, state, datasheets.

Imports base, and nothing that knows of a run.
"""
