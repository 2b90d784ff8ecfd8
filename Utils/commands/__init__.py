"""One file a target of the core, which parses, calls and prints; __main__ finds it by its name.

Imports every layer of the core; nothing imports it.
"""
