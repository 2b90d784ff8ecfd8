"""One file a target of the core, which calls and prints; __main__ parses for all of them.

Imports every layer of the core; nothing imports it.
"""
