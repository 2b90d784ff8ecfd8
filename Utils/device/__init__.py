"""One device: its clock and memory, what it can do, and what it is doing.

Imports Utils.base, and nothing that knows of a run.
"""
