"""One device: its clock, memory, capabilities and state.

Imports Utils.base, and nothing that knows of a run.
"""
