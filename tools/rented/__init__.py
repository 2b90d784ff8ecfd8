"""What to measure first on a GPU that one has for a while, in pieces that fit into the time.

Imports the core, tools/forecast, tools/peers and tools/share; each piece is a command in a process
of its own.
"""
