"""The most useful measurements first, on a GPU with limited time, in pieces that fit into it.

Imports the core, tools/forecast, tools/peers and tools/share; each piece is a command in a process
of its own.
"""
